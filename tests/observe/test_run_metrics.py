"""The metrics about a run's peers, served by a node of the operator."""

from __future__ import annotations

import re
from typing import Any

from peer.observe.exposition import exposition
from peer.observe.metrics import METRICS
from peer.observe.run_metrics import MOST_PEERS, RUN_METRICS
from peer.observe.status.codec import to_json
from tests.prometheus_text import Family, parse
from tests.support.signed_receipts import Signing
from tests.support.summaries import SetClock, shown, signed_summary, view_at


def families(view: dict[str, Any], role: str = "bootstrap") -> dict[str, Family]:
    return parse(exposition({"status": {"role": role, "view": view}}, role).decode())


def test_names_follow_the_conventions() -> None:
    names = [metric.name for metric in RUN_METRICS]
    assert not {metric.name for metric in METRICS} & set(names)
    for metric in RUN_METRICS:
        assert re.fullmatch(r"peer_run_[a-z_]+[a-z]", metric.name)
        assert metric.name.endswith(metric.unit)
        assert metric.help.endswith(".")


def test_values_are_those_of_the_view() -> None:
    view, peer, other = view_at(SetClock()), Signing(), Signing()
    view.on_summary(peer.id, "a", signed_summary(peer, loss=3.0, receipts=(shown(other, peer, 1),)))
    view.on_summary(other.id, "b", signed_summary(other, loss=None))
    view.on_summary(other.id, "b", b"forged")
    view.tick()
    found = families(to_json(view.report()))
    assert {metric.name for metric in RUN_METRICS} <= set(found)
    assert found["peer_run_peers"].value(doing="training") == 2
    assert found["peer_run_networks"].value() == 2
    assert found["peer_run_median_tokens_per_second"].value() == 50
    assert found["peer_run_participation_ratio"].value() == 0.8
    assert found["peer_run_validation_loss"].value(quartile="median") == 3.0
    assert found["peer_run_summaries_dropped_total"].value(why="forged") == 1
    assert found["peer_run_peer_exchanged_rounds"].value(peer=peer.id) == 8
    assert len(found["peer_run_peer_validation_loss"].samples) == 1, "the other has none"


def test_a_run_without_peers_has_no_samples_of_them() -> None:
    found = families(to_json(view_at(SetClock()).report()))
    assert found["peer_run_peers"].value(doing="training") == 0
    assert found["peer_run_validation_loss"].samples == {}
    assert found["peer_run_peer_round"].samples == {}


def test_the_peers_with_metrics_are_the_first_of_the_view() -> None:
    report = to_json(view_at(SetClock()).report())
    line = {"state": "training", "round": 1, "tokens": 1, "tokens_per_s": 1.0, "loss": None, "exchanges": 0, "due": 0}
    names = [f"key {number:04}" for number in range(2000)]
    report["peers"] = [{**line, "peer_id": name, "seen_s_ago": 0.0} for name in names]
    found = families(report)["peer_run_peer_round"]
    assert len(found.samples) == MOST_PEERS
    assert found.value(peer=names[MOST_PEERS - 1]) == 1
