"""Renders the metrics in Prometheus's text format, from the table `METRICS` and a mapping of facts. Pure: equal facts
give equal text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from peer.observe.metrics import EXCHANGE_BOUNDS, METRICS, Metric
from peer.observe.run_metrics import run_families
from peer.observe.status.value import DaemonStatus
from peer.observe.totals import Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Facts = Mapping[str, Any]
"""Nested mappings. The top-level keys are the sources in `peer.observe.metrics.SOURCES`."""
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def exposition(facts: Facts, role: str) -> bytes:
    """Return the text with all metrics of a daemon. `role`: `peer` or `bootstrap`. A metric whose value is unknown has
    no sample."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(facts, role))
    return generate_latest(registry)


def totals_facts(totals: Totals) -> dict[str, Any]:
    """Return the facts `sums`: totals over the complete journal."""
    facts: dict[str, Any] = {
        "starts": totals.starts,
        "trainer_deaths": totals.trainer_deaths,
        "exchange_bytes": {"sent": totals.bytes_sent, "received": totals.bytes_received},
    }
    if totals.val_loss:
        round_, loss, bits = totals.val_loss[-1]
        facts["eval"] = {"round": round_, "loss": loss, "bits_per_byte": bits}
    return facts


def status_facts(status: DaemonStatus) -> dict[str, Any]:
    """Return the facts `seen`: numbers that are computed from a status."""
    facts: dict[str, Any] = {}
    if status.peers is not None:
        facts["peers"] = Counter(dict.fromkeys(_values("peer_peers_known"), 0))
        facts["peers"].update(peer.status for peer in status.peers)
        facts["reachable"] = sum(peer.reachable for peer in status.peers)
    if (progress := status.progress) is not None:
        if due := progress.rounds.get("due", 0):
            facts["participation"] = progress.rounds.get("exchanged", 0) / due
        facts["found"] = Counter(dict.fromkeys(_values("peer_diagnosis_findings"), 0))
        facts["found"].update(finding.what for finding in progress.diagnosis if finding.who)
    return facts


class _Collected(Collector):
    def __init__(self, facts: Facts, role: str) -> None:
        self._facts, self._role = facts, role

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric.bootstrap or self._role == "peer":
                yield family(metric, self._facts)
        if (view := lookup(self._facts, "status.view")) is not None:
            yield from run_families(view)


def family(metric: Metric, facts: Facts) -> Family:
    """Return one metric with its samples."""
    match metric.kind:
        case "info":
            info = GaugeMetricFamily(metric.name, metric.help, labels=metric.values)
            found = lookup(facts, metric.path) or {}
            info.add_metric([str(found.get(name, "")) for name in metric.values], 1)
            return info
        case "histogram":
            return _histogram(metric, lookup(facts, metric.path))
    labels = [metric.label] if metric.label else []
    made = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
        metric.name, metric.help, labels=labels
    )
    for label in metric.values or ("",):
        value = _value(metric, facts, label)
        if value is not None:
            made.add_metric([label] if metric.label else [], value)
    return made


def _histogram(metric: Metric, found: Any) -> HistogramMetricFamily:
    found = found or {"buckets": [0] * (len(EXCHANGE_BOUNDS) + 1), "sum": 0.0}
    bounds = [*map(str, EXCHANGE_BOUNDS), "+Inf"]
    buckets = list(zip(bounds, accumulate(found["buckets"]), strict=True))
    return HistogramMetricFamily(metric.name, metric.help, buckets=buckets, sum_value=found["sum"])


def _value(metric: Metric, facts: Facts, label: str) -> float | None:
    """Return the sample of a metric for one label value. None: not known."""
    path = metric.path.replace(f"{{{metric.label}}}", label)
    found = lookup(facts, path)
    if metric.equals:
        return None if found is None else float(found == label)
    if found is None:
        return 0.0 if metric.kind == "counter" and _counted(facts, path) else None
    if not metric.per:
        return float(found)
    divisor = lookup(facts, metric.per)
    return found / divisor if divisor else None


def _counted(facts: Facts, path: str) -> bool:
    """Whether the mapping that would hold this count exists: then a missing count means 0. Otherwise the counter must
    have no sample, because a step from 0 to an old value would look like a burst."""
    table = path.rpartition(".")[0]
    return "." in table and lookup(facts, table) is not None


def lookup(facts: Facts, path: str) -> Any:
    """Return the value at a dotted path; None: there is none."""
    found: Any = facts
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _values(name: str) -> tuple[str, ...]:
    return next(metric.values for metric in METRICS if metric.name == name)
