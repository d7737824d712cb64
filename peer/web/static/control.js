// The volunteer's commands. The token stays in this tab: it comes behind the # of the address, which no request holds.

import { byId, text } from "./dom.js";

const KEY = "peer-token";

export function control() {
  take(new URLSearchParams(location.hash.slice(1)).get("token"));
  addEventListener("hashchange", () => take(new URLSearchParams(location.hash.slice(1)).get("token")));
  byId("unlock").addEventListener("click", () => take(byId("token").value.trim()));
  byId("token").addEventListener("keydown", (event) => event.key === "Enter" && byId("unlock").click());
  byId("pause").addEventListener("click", () => {
    const seconds = byId("pause-for").value;
    act(`pause${seconds ? `?for_s=${seconds}` : ""}`, (reply) => reply.paused?.now ?? "paused");
  });
  byId("resume").addEventListener("click", () => act("resume", () => "told to go on"));
  byId("leave").addEventListener("click", () => byId("leaving").showModal());
  byId("stay").addEventListener("click", () => byId("leaving").close());
  byId("leave-now").addEventListener("click", () => {
    byId("leaving").close();
    act("leave", (reply) => `leaving${reply.told ? `: ${reply.told}` : ""}`);
  });
  if (sessionStorage.getItem(KEY)) check();
}

function take(token) {
  if (!token) return;
  sessionStorage.setItem(KEY, token);
  byId("token").value = "";
  if (location.hash.includes("token=")) history.replaceState(null, "", location.pathname);
  check();
}

async function check() {
  const reply = await post("token");
  lock(!reply.ok);
  text("told", reply.ok ? "" : reply.body.reason ?? "the token was not taken");
  if (!reply.ok) sessionStorage.removeItem(KEY);
}

function lock(locked) {
  byId("locked").hidden = !locked;
  byId("unlocked").hidden = locked;
}

async function act(what, words) {
  const reply = await post(what);
  if (reply.status === 401) lock(true);
  const { reason, fix } = reply.body;
  text("told", reply.ok ? words(reply.body) : [reason ?? "that did not work", fix].filter(Boolean).join(". "));
}

async function post(what) {
  try {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
    const answer = await fetch(`/api/${what}`, { method: "POST", headers });
    return { ok: answer.ok, status: answer.status, body: await answer.json().catch(() => ({})) };
  } catch {
    return { ok: false, status: 0, body: { reason: "the daemon does not answer" } };
  }
}
