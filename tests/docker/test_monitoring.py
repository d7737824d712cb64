"""The configuration of Prometheus and Grafana names only services, ports, files, metrics and labels that exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from peer.observe.metrics import METRICS, Metric
from peer.observe.run_metrics import RUN_METRICS, RunMetric
from tests.docker.compose_file import services
from tests.docker.promql import Selector, parse

MONITORING = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
PROMETHEUS = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
RULES = [rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/swarm.json").read_text())
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for target in TARGETS]
FROM_PROMETHEUS = {"up"}
EVERYWHERE = {"instance", "job"}
FUNCTIONS = {
    "abs", "absent", "avg", "count", "histogram_quantile", "increase", "max", "min", "rate", "sum", "vector",
}  # fmt: skip


def samples() -> dict[str, Metric | RunMetric]:
    """Return every sample name that the endpoint of a peer or a node serves, with its metric."""
    found = dict[str, Metric | RunMetric]()
    for metric in (*METRICS, *RUN_METRICS):
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found.update({metric.name + end: metric for end in ends})
    return found


def wrong_with(selector: Selector) -> str:
    """Return why nothing serves this selector. Empty: something does."""
    if selector.name in FROM_PROMETHEUS | RECORDED:
        return ""
    metric = samples().get(selector.name)
    if metric is None:
        return f"no metric {selector.name}"
    for label, value in selector.matchers:
        if label != metric.label:
            return f"{selector.name} has no label {label}"
        if value not in metric.values:
            return f"{label} is never {value}"
    if selector.ranged and metric.kind not in ("counter", "histogram"):
        return f"{selector.name} is a {metric.kind}: no rate of it"
    return ""


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_names_only_what_is_served(text: str) -> None:
    expression = parse(text)
    assert expression.selectors
    assert [found for it in expression.selectors if (found := wrong_with(it))] == []
    assert expression.functions <= FUNCTIONS
    labels = {samples()[it.name].label for it in expression.selectors if it.name in samples()}
    assert expression.labels <= labels | EVERYWHERE | {"le"}


def test_what_is_wrong_would_be_found() -> None:
    for text, words in [
        ("rate(peer_rounds[5m])", "no metric peer_rounds"),
        ('peer_status{status="dancing"}', "never dancing"),
        ('peer_status{outcome="solo"}', "no label outcome"),
        ("rate(peer_round[5m])", "no rate"),
        ("peer_exchange_duration_seconds", "no metric"),
        ('peer_run_peers{doing="dancing"}', "never dancing"),
        ("rate(peer_run_round[5m])", "no rate"),
    ]:
        assert words in wrong_with(parse(text).selectors[0])
    for text in ("sum(x", "x)", "x{a=b}", "x{a", "a & b", "sum by x"):
        with pytest.raises(ValueError, match=r".+"):
            parse(text)


def test_the_whole_run_is_shown_too() -> None:
    """Fault: without a node's metrics the dashboard would lack volunteers, whose own endpoints Prometheus does not
    scrape."""
    shown = {it.name for target in TARGETS for it in parse(target["expr"]).selectors}
    assert {metric.name for metric in RUN_METRICS if metric.label != "peer"} - shown == set()


def test_a_counter_is_looked_at_by_its_rate_or_as_a_part() -> None:
    """Fault: a panel of a bare counter shows only how long the process has run."""
    for text in EXPRESSIONS:
        bare = [it.name for it in parse(text).selectors if it.name.endswith("_total") and not it.ranged]
        assert not bare or "/" in text or "abs(" in text, text


def test_prometheus_asks_services_that_serve() -> None:
    assert set(PROMETHEUS) == {"global", "rule_files", "scrape_configs"}
    known = services({})
    for job in PROMETHEUS["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        assert found["names"][0] == job["job_name"]
        assert found["type"] == "A"
        for name in found["names"]:
            words = known[name]["command"]
            assert f"--metrics-port={found['port']}" in words
            assert "--metrics-host=0.0.0.0" in words


def mounted(service: str, path: str) -> Path:
    """Return the file of this repository that is mounted at `path` in a service's container."""
    for entry in services({})[service]["volumes"]:
        source, target, *_ = entry.split(":")
        if source.startswith("./") and (path == target or path.startswith(target + "/")):
            return MONITORING.parent / source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"nothing is mounted at {path}")


def test_every_file_is_where_it_is_looked_for() -> None:
    command = services({})["prometheus"]["command"]
    config = next(word.partition("=")[2] for word in command if word.startswith("--config.file="))
    for path in (config, *PROMETHEUS["rule_files"]):
        assert mounted("prometheus", path).is_file()
    for kind in ("datasources/prometheus.yml", "dashboards/swarm.yml"):
        assert mounted("grafana", f"/etc/grafana/provisioning/{kind}").is_file()
    provider = read("dashboards/swarm.yml")["providers"][0]
    assert (mounted("grafana", provider["options"]["path"]) / "swarm.json").is_file()
    home = services({})["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/swarm.json"


def read(name: str) -> Any:
    return yaml.safe_load((MONITORING / "grafana/provisioning" / name).read_text())


def test_every_panel_asks_the_one_data_source() -> None:
    (source,) = read("datasources/prometheus.yml")["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert any(it.endswith(f":{port}") for it in services({})[host]["ports"])
    asked = {owner["datasource"]["uid"] for owner in [*DASHBOARD["panels"], *TARGETS]}
    assert asked == {source["uid"]}


def test_panels_have_a_meaning_and_a_place_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_alert_says_what_is_the_matter() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert alerts
    assert all(rule["annotations"]["summary"] for rule in alerts)
