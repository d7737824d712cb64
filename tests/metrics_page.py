"""docs/reference/metrics.md, made from the table of peer/observe/metrics.py: the two cannot disagree."""

from __future__ import annotations

from peer.observe.metrics import EXCHANGE_BOUNDS, METRICS, SOURCES, Metric
from peer.observe.run_metrics import RUN_METRICS

HEAD = """\
# Metrics

<!-- Made from peer/observe/metrics.py by `python -m tests.generated --write`: edit there. -->

`peer join … --metrics-port 9464` and `peer bootstrap … --metrics-port 9464` serve these at `/metrics`, as Prometheus
reads them (text format 0.0.4), and answer `ok` at `/healthz`. There is no password, so the endpoint listens on the
loopback address unless `--metrics-host` names another one. All label values are listed below. Only `peer_run_peer_...`
has peer ids as labels, for at most 256 peers.

An unknown value has no sample. Counters of journal events or payload frames begin at zero with each start of the
daemon, as Prometheus expects of counters. Those over the complete journal, and those of the trainer, continue.

| metric | type | unit | labels | meaning | from | bootstrap |
| --- | --- | --- | --- | --- | --- | --- |
"""
RUN = """
## The run's peers

`peer bootstrap --metrics-port` also serves these. The values are what peers report of themselves in signed summaries. A
peer with `--no-summary` is not included.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    """Return the text of the file."""
    bounds = ", ".join(f"{bound:g}" for bound in EXCHANGE_BOUNDS)
    tail = f"\nBuckets of `peer_exchange_duration_seconds`, seconds: {bounds}.\n"
    return HEAD + "".join(f"{_row(metric)}\n" for metric in METRICS) + tail + _of_the_run() + _labels()


def _of_the_run() -> str:
    rows = (f"| `{m.name}` | {m.kind} | {m.unit} | {m.label} | {m.help} |\n" for m in RUN_METRICS)
    return RUN + "".join(rows)


def _row(metric: Metric) -> str:
    labels = metric.label or ", ".join(metric.values)
    cells = [
        f"`{metric.name}`",
        "gauge" if metric.kind == "info" else metric.kind,
        metric.unit,
        labels,
        metric.help,
        _origin(metric),
        "yes" if metric.bootstrap else "no",
    ]
    return "| " + " | ".join(cells) + " |"


def _origin(metric: Metric) -> str:
    root, _, rest = metric.path.partition(".")
    return SOURCES[root] + (f": `{rest}`" if root == "status" and rest else "")


def _labels() -> str:
    values: dict[str, tuple[str, ...]] = {metric.label: metric.values for metric in METRICS if metric.label}
    values |= {metric.label: metric.values for metric in RUN_METRICS if metric.values}
    values["code"] = ("those of [codes](codes.md)",)
    rows = (f"| `{label}` | {', '.join(values[label])} |\n" for label in sorted(values))
    return "\n## Label values\n\n| label | values |\n| --- | --- |\n" + "".join(rows)
