// A volunteer's page.

import { control } from "./control.js";
import { Curves, joined } from "./curves.js";
import { badge, byId, datum, list, table, text } from "./dom.js";
import { ago, brief, bytes, count, duration, loss, peerCell, shortId } from "./format.js";
import { follow } from "./live.js";

const curves = new Curves("curve", [
  { label: "training", colour: "--first" },
  { label: "validation", colour: "--second", dash: [6, 4], points: true },
]);
const state = { peer: null, work: null, rounds: [] };

function showPeer(peer) {
  state.peer = peer;
  text("run-name", peer.run ? `in ${peer.run}` : "");
  document.title = `${peer.status}: ${peer.run || "peer"}`;
  const paused = peer.paused && peer.paused.now !== "no";
  badge("status", paused && peer.status !== "leaving" ? "paused" : peer.status, peer.status === "training" && !paused ? "good" : "");
  text("phase", brief([peer.leaving || (paused ? peer.paused.now : peer.phase === peer.status ? "" : peer.phase), peer.wait].filter(Boolean).join(" · ")));
  byId("resume").disabled = !(peer.paused && peer.paused.since != null);
  list("conditions", peer.conditions, "");
  text("peer-id", peer.peer_id);
  text("run-id", peer.run_id.slice(0, 16));
  text("version", peer.version);
  tick();
}

function showWork(work) {
  state.work = work;
  const rounds = work.rounds ?? {};
  datum("round", work.round, work.round == null ? "–" : String(work.round));
  datum("loss", work.loss, loss(work.loss));
  const [round, validation] = work.val_loss ?? [];
  datum("val-loss", validation, loss(validation));
  text("val-round", round == null ? "" : `in round ${round}`);
  datum("tokens", work.tokens, count(work.tokens));
  text("steps", work.steps == null ? "" : `in ${count(work.steps)} steps`);
  datum("tokens-per-s", work.tokens_per_s, count(work.tokens_per_s));
  datum("exchanged", rounds.exchanged ?? 0, String(rounds.exchanged ?? 0));
  const logged = Object.entries(work.logged ?? {}).map(([name, value]) => `${name} ${value.toPrecision(4)}`);
  byId("logged").closest("div").hidden = logged.length === 0;
  text("logged", logged.join(", "));
  text("due-rounds", rounds.due ? work.participation : "rounds");
  tick();
}

function showBytes(told) {
  datum("sent", told.sent, bytes(told.sent));
  datum("received", told.received, bytes(told.received));
  const how = told.line?.measured ? "measured" : "estimated";
  const beside = (control, line) => `of payload, beside ${bytes(control)} of control messages; `
    + `with connections and headers ${bytes(line)}, ${how}`;
  text("control-sent", beside(told.control_sent, told.line?.sent));
  text("control-received", beside(told.control_received, told.line?.received));
  const { used, limit, why } = told.budget ?? {};
  const lines = ["day", "month"].filter((span) => limit?.[span] != null)
    .map((span) => `Upload this ${span}: ${bytes(used[span])} of ${bytes(limit[span])}, ${how}; `
      + `${bytes(told.budget.kept_back?.[span])} are kept back for control traffic, estimated`);
  if (why) lines.push(why);
  if (told.caps?.sent) lines.push(`Upload cap: ${bytes(told.caps.sent)} a second`);
  if (told.caps?.received) lines.push(`Download cap: ${bytes(told.caps.received)} a second`);
  list("budgets", lines, used ? `No budget is set. ${bytes(used.day)} were sent today, ${how}.` : "");
}

function showCurve(curve) {
  curves.show(joined([curve.training, curve.validation]));
  const last = (points) => {
    const [round, value] = points[points.length - 1] ?? [];
    return round == null ? "none yet" : `${loss(value)} in round ${round}`;
  };
  text("curve-words", `Solid: training, ${last(curve.training)}. Dashed: validation, ${last(curve.validation)}.`);
}

function showRounds(rounds) {
  state.rounds = rounds;
  table("rounds", rounds.map((one) => [
    String(one.round),
    one.outcome === "exchanged" ? `exchanged${one.path ? `, ${one.path}` : ""}` : { text: brief(`${one.outcome}: ${one.why}`), kind: "wide" },
    { text: one.partner.split(" ").filter(Boolean).map(shortId).join(", "), title: one.partner, copies: one.partner },
    one.seconds.toFixed(1), bytes(one.bytes_sent), bytes(one.bytes_received), ago(one.t),
  ]), "No round has ended yet.");
}

function showPartners(partners) {
  table("partners", partners.map((one) => [
    peerCell(one.peer_id), one.status, String(one.round), one.path || "–",
    { text: one.pairs, kind: "wide" },
  ]), "No other peer is known yet.");
}

function showFindings(findings) {
  list("findings", findings.map((one) => brief(`${one.about}: ${one.sentence}${one.fix ? `. ${one.fix}` : ""}`)), "Nothing to report.");
}

function tick() {
  const { peer, work, rounds } = state;
  if (peer) text("uptime", `up ${duration(Date.now() / 1000 - peer.started)}`);
  if (work) {
    const left = work.due == null ? null : work.due - Date.now() / 1000;
    const words = [work.total_rounds == null ? "" : `of ${work.total_rounds}`, left > 0 ? `due in ${duration(left)}` : ""];
    text("total-rounds", words.filter(Boolean).join(", "));
  }
  [...byId("rounds").rows].forEach((row, at) => rounds[at] && (row.cells[6].textContent = ago(rounds[at].t)));
}

control();
setInterval(tick, 1000);
follow({
  peer: showPeer, work: showWork, bytes: showBytes, curve: showCurve, rounds: showRounds, partners: showPartners,
  findings: showFindings,
});
