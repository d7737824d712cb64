// The account as it changes: one server-sent event for each part of it.

import { byId, text } from "./dom.js";

const AGAIN_MS = 5000;

// `parts`: for each name what shows it. Calls `changed` after each.
export function follow(parts, changed) {
  const stream = new EventSource("/api/events");
  let ended = false;
  for (const [name, show] of Object.entries(parts)) {
    stream.addEventListener(name, (event) => {
      show(JSON.parse(event.data));
      changed?.(name);
    });
  }
  stream.addEventListener("open", () => say("live", false));
  stream.addEventListener("end", () => {
    ended = true;
    say("the daemon has ended; these are its last figures", true);
  });
  stream.addEventListener("error", () => {
    if (!ended) say("no connection: these figures are old; trying again", true);
    if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    setTimeout(() => follow(parts, changed), AGAIN_MS);
  });
}

function say(words, lost) {
  text("live", words);
  byId("live").classList.toggle("lost", lost);
}
