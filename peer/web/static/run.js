// A run's public page.

import { Curves, joined } from "./curves.js";
import { badge, byId, datum, list, table, text } from "./dom.js";
import { ago, bytes, count, loss, peerCell, share } from "./format.js";
import { follow } from "./live.js";

const curves = new Curves("curve", [
  { label: "upper quartile", colour: "--quiet", width: 1, dash: [3, 3] },
  { label: "median", colour: "--first" },
  { label: "lower quartile", colour: "--quiet", width: 1, dash: [3, 3] },
]);
const state = { ended: false, ticket: "", model: {}, peers: [] };

function showRun(run) {
  text("run-name", run.name ?? "");
  document.title = `peer: ${run.name ?? "a run"}`;
  state.ended = Boolean(run.ended);
  datum("round", run.round, run.round == null ? "–" : String(run.round));
  text("total-rounds", run.total_rounds == null ? "" : `of ${run.total_rounds}`);
  const words = [run.preset, run.parameters == null ? "" : `${count(run.parameters)} parameters`,
    run.started ? `began ${ago(run.started)}` : ""];
  text("about", words.filter(Boolean).join(" · "));
  text("run-id", (run.run_id ?? "").slice(0, 16));
  text("version", run.version);
  badge("status", state.ended ? "over" : "running", state.ended ? "" : "good");
  showWays();
}

function showTotals(totals) {
  datum("peers-count", totals?.peers, totals?.peers == null ? "–" : String(totals.peers));
  text("networks", totals?.networks == null ? "" : `from ${totals.networks} network${totals.networks === 1 ? "" : "s"}`);
  datum("tokens-per-s", totals?.median_tokens_per_s, count(totals?.median_tokens_per_s));
  datum("participation", totals?.participation, share(totals?.participation));
  text("participation-of", String(totals?.participation_of ?? "the"));
  datum("spread", totals?.spread, loss(totals?.spread));
  text("spread-of", String(totals?.spread_of ?? "the"));
}

function showCurve(points) {
  const line = (name) => points.filter((one) => one[name] != null).map((one) => [one.round, one[name]]);
  curves.show(joined([line("high"), line("median"), line("low")]));
  const last = points[points.length - 1];
  datum("loss", last?.median, loss(last?.median));
  text("loss-range", last ? `median of ${last.count} peers; half lie in ${loss(last.low)} to ${loss(last.high)}` : "");
  text("curve-words", last ? `Solid: the median of the peers, ${loss(last.median)} in round ${last.round}. Half of the peers lie between the dotted lines.` : "No loss yet.");
}

function showPeers(peers) {
  state.peers = peers;
  table("peers", peers.map((one) => [
    peerCell(one.peer_id), one.state ?? "–", String(one.round ?? "–"), loss(one.loss), count(one.tokens),
    count(one.tokens_per_s), String(one.exchanges ?? "–"), bytes(one.bytes_up), bytes(one.bytes_down),
    one.seen == null ? "–" : ago(one.seen), one.version ?? "–",
  ]), "No peer has told about itself yet.");
}

function showAmendments(amendments) {
  list("amendments", amendments.map((one) => `${one.number}. ${one.round ? `From round ${one.round}` : "From when it was known"}: ${one.what}`),
    "The operator has amended nothing.");
}

function showModel(model) {
  state.model = model;
  showWays();
}

function showJoin(join) {
  state.ticket = join.ticket;
  showWays();
}

// How to take part, and how to get the model.
function showWays() {
  const { ended, ticket, model } = state;
  byId("h-join").parentElement.hidden = ended || !ticket;
  text("join", ticket ? `peer join ${ticket}` : "");
  const over = ended || model.ended ? "The run is over. " : "";
  const kept = model.state ? `The node keeps the model of round ${model.state.round}. This line gets it:` : "";
  text("model", over + (kept || model.why || "The node keeps no model yet."));
  text("model-command", `peer export ${ticket} model`);
  byId("model-command").hidden = !kept || !ticket;
}

function showDropped(dropped) {
  const sum = Object.values(dropped ?? {}).reduce((all, one) => all + one, 0);
  const kinds = Object.entries(dropped ?? {}).map(([kind, number]) => `${number} ${kind}`).join(", ");
  text("dropped", sum ? `summaries dropped: ${kinds}` : "no summary was dropped");
  byId("dropped").hidden = !dropped;
}

setInterval(() => {
  [...byId("peers").rows].forEach((row, at) => state.peers[at]?.seen && (row.cells[9].textContent = ago(state.peers[at].seen)));
}, 1000);
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("join").textContent);
    text("told", "Copied.");
  } catch {
    getSelection().selectAllChildren(byId("join"));
    text("told", "Marked: copy it with your browser.");
  }
});
follow({
  join: showJoin, run: showRun, totals: showTotals, curve: showCurve, peers: showPeers,
  amendments: showAmendments, dropped: showDropped, model: showModel,
});
