"""The metrics about a run's peers that an operator's node serves, from its run view.

The values are what peers report of themselves in their summaries. Only here a peer id is a label, for at most
`MOST_PEERS` peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from peer.observe.metrics import STATUSES
from peer.protocol.summary.book import DROPS

MOST_PEERS = 256
"""Peers with time series of their own."""
SILENT = "silent"
"""State of a peer that no longer sends summaries."""
QUARTILES = ("low", "median", "high")


@dataclass(frozen=True, slots=True)
class RunMetric:
    """One metric. `path`: where its value is, in the facts of `_facts`, or for the label `peer` in each peer's line."""

    name: str
    help: str
    path: str
    unit: str = ""
    label: str = ""
    values: tuple[str, ...] = ()
    """All values of the label. Empty for the label `peer`, whose values are peer ids."""

    @property
    def kind(self) -> str:
        """The Prometheus type: `counter` or `gauge`."""
        return "counter" if self.name.endswith("_total") else "gauge"


RUN_METRICS: tuple[RunMetric, ...] = (
    RunMetric("peer_run_round", "Current round of the run, as the node sees it.", "round"),
    RunMetric(
        "peer_run_peers",
        "Peers that sent a summary in the last hour, by status.",
        "doing",
        label="doing",
        values=(*STATUSES, SILENT),
    ),
    RunMetric("peer_run_networks", "Address blocks of these peers, which cost money.", "totals.networks"),
    RunMetric(
        "peer_run_median_tokens_per_second",
        "Median tokens a second of training peers. Each address block has one vote.",
        "totals.median_tokens_per_s",
        unit="tokens_per_second",
    ),
    RunMetric(
        "peer_run_participation_ratio",
        "Share of due rounds that were exchanged, mean over peers, 0 to 1.",
        "totals.participation",
        unit="ratio",
    ),
    RunMetric(
        "peer_run_validation_loss",
        "Validation loss in nats a token over peers: quartiles and median of the newest round.",
        "last_loss",
        label="quartile",
        values=QUARTILES,
    ),
    RunMetric(
        "peer_run_summaries_dropped_total",
        "Summaries that this node dropped since its start, by reason.",
        "dropped",
        label="why",
        values=DROPS,
    ),
    RunMetric("peer_run_peer_round", "Round of a peer.", "round", label="peer"),
    RunMetric("peer_run_peer_tokens", "Tokens that a peer processed.", "tokens", unit="tokens", label="peer"),
    RunMetric(
        "peer_run_peer_tokens_per_second",
        "Tokens a second of a peer.",
        "tokens_per_s",
        unit="tokens_per_second",
        label="peer",
    ),
    RunMetric("peer_run_peer_validation_loss", "Last validation loss of a peer, nats a token.", "loss", label="peer"),
    RunMetric("peer_run_peer_exchanged_rounds", "Exchanged rounds of a peer.", "exchanges", label="peer"),
    RunMetric("peer_run_peer_due_rounds", "Due rounds of a peer.", "due", label="peer"),
    RunMetric(
        "peer_run_peer_silence_seconds",
        "Seconds since a peer's last summary.",
        "seen_s_ago",
        unit="seconds",
        label="peer",
    ),
)


def run_families(view: Mapping[str, Any]) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """Yield the metrics of a run view (`peer.node.operator.run_view`). A metric whose value is unknown has no
    sample."""
    facts, peers = _facts(view), view["peers"][:MOST_PEERS]
    for metric in RUN_METRICS:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        made = kind(metric.name, metric.help, labels=[metric.label] if metric.label else [])
        for label, value in _samples(metric, facts, peers):
            if value is not None:
                made.add_metric([label] if metric.label else [], float(value))
        yield made


def _samples(metric: RunMetric, facts: Mapping[str, Any], peers: list[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    if metric.label == "peer":
        for line in peers:
            yield line["peer_id"], line[metric.path]
        return
    found: Any = facts
    for part in metric.path.split("."):
        found = found[part]
    for label in metric.values or ("",):
        yield label, found.get(label) if metric.label else found


def _facts(view: Mapping[str, Any]) -> dict[str, Any]:
    states = dict.fromkeys((*STATUSES, SILENT), 0)
    for line in view["peers"]:
        states[line["state"]] += 1
    return {**view, "doing": states, "last_loss": view["loss"][-1] if view["loss"] else {}}
