"""The table of metrics, its reference page, and the text rendered from it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from peer.codes import Code, CodeText, counted_as
from peer.observe import events
from peer.observe.control_bytes import PURPOSES
from peer.observe.counters import EventCounters
from peer.observe.exposition import exposition, lookup, status_facts, totals_facts
from peer.observe.metrics import CODES, EXCHANGE_BOUNDS, METRICS, SOURCES, STATUSES
from peer.observe.status.codec import to_json
from peer.observe.status.notices import read_status
from peer.observe.totals import Totals
from tests import metrics_page
from tests.golden import freeze
from tests.observe.status.test_status_value import example
from tests.prometheus_text import Family, parse

ROOT = Path(__file__).parents[2]

STATUS: dict[str, Any] = {
    "role": "peer",
    "run_id": "ab" * 32,
    "status": "training",
    "uptime_s": 12.5,
    "parameters": 1000,
    "total_rounds": 40,
    "steps": 77,
    "tokens_per_s": 5000.0,
    "seconds_training": 60.0,
    "seconds_waiting": 3.0,
    "loss": 1.75,
    "ledger": {"processed": 2**60, "applied": 5000, "dropped": 2500, "outstanding": 500},
    "round": 9,
    "next_due_in_s": 4.5,
    "rounds": {"due": 8, "exchanged": 6, "solo": 2},
    "paths": {"direct": 4, "mapped": 0, "punched": 0, "relayed": 2},
    "relaying": {"bytes": 9, "reservations": 1},
    "partner_params": {"taken": 5, "clipped": 1, "refused": 0, "unchecked": 2, "why_unchecked": ""},
    "diagnosis": [{"what": "slow_uplink", "who": "you", "number": 0.8, "unit": "Mbit/s", "why": "your uplink"}],
    "exchanging": {"sent": 1e5, "received": 6e5, "late_s": 1.5},
    "bytes_sent": 10,
    "bytes_received": 20,
    "control_bytes": {
        "sent": dict.fromkeys(PURPOSES, 5),
        "received": dict.fromkeys(PURPOSES, 6),
    },
    "caps": {"sent": 125000.0, "received": None},
    "budget": {"used": {"day": 7, "month": 9}, "limit": {"day": 5 * 10**9, "month": 10**11}, "why": ""},
    "peers": [{"status": "training", "reachable": True}, {"status": "joining", "reachable": False}],
    "reachable": {"value": False, "why": ""},
    "neighbours": 3,
    "membership": {"suspected_count": 2, "out_count": 1},
    "directory": {"state": "alone", "losses": 2},
    "refusal_counts": {"clock": 4},
    "clock_correction_s": -0.25,
}


def full() -> dict[str, Any]:
    """Return facts in which every value is known."""
    tally = EventCounters()
    tally.count(ended(0.3), 5.0)
    tally.count(events.Checkpointed(round=1, folder="f", seconds=0.5, bytes=900), 10.0)
    totals = Totals(starts=2, trainer_deaths=1, bytes_sent=7, bytes_received=8, val_loss=((5, 2.0, 2.9), (8, 1.9, 2.7)))
    held = {"resident_bytes": 4096, "open_files": 7}
    return {
        "status": STATUS,
        "seen": status_facts(read_status(STATUS)),
        "sums": totals_facts(totals),
        "counted": tally.report(13.0),
        "proc": {"daemon": held, "trainer": held, "p2pd": held},
        "loop": {"lag_s": 0.02},
        "build": {"version": "1", "python": "3", "torch": "2"},
    }


def ended(seconds: float, outcome: events.Outcome = "exchanged") -> events.RoundEnded:
    return events.RoundEnded(
        round=1,
        fragment=0,
        outcome=outcome,
        partner="",
        reason="",
        applied=1,
        dropped=0,
        upto=1,
        steps=1,
        bytes_sent=1,
        bytes_received=1,
        seconds=seconds,
    )


def families(facts: dict[str, Any], role: str = "peer") -> dict[str, Family]:
    return parse(exposition(facts, role).decode())


# -- the table


def test_names_follow_the_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"peer_[a-z_]+[a-z]", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_info") == (metric.kind == "info"), metric.name
        assert not metric.unit or f"_{metric.unit}" in metric.name, metric.name
        assert not re.search(r"(_ms|_kb|_mb|_minutes|_percent)(_|$)", metric.name), "base units only"
        assert metric.help.endswith("."), metric.name


def test_every_path_begins_with_a_known_source_and_every_label_has_its_values() -> None:
    for metric in METRICS:
        assert metric.path.partition(".")[0] in SOURCES, metric.name
        assert bool(metric.label) == (bool(metric.values) and metric.kind != "info"), metric.name
        assert len(metric.values) <= len(CODES), "bounded"
        assert metric.label not in ("peer", "peer_id", "partner", "reason", "caller")
        assert metric.equals or metric.kind == "info" or (f"{{{metric.label}}}" in metric.path) == bool(metric.label)


def test_the_page_is_current_and_shows_every_metric() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert page == metrics_page.page(), "run: python -m tests.generated --write"
    for metric in METRICS:
        kind = "gauge" if metric.kind == "info" else metric.kind
        assert f"| `{metric.name}` | {kind} | {metric.unit} |" in page


# -- the text


def test_everything_known_is_there_with_its_type() -> None:
    found = families(full())
    assert list(found) == [metric.name for metric in METRICS]
    for metric in METRICS:
        family = found[metric.name]
        assert family.kind == ("gauge" if metric.kind == "info" else metric.kind)
        assert family.help == metric.help
        if metric.name != "peer_network_cap_bytes_per_second" and metric.kind != "histogram":
            assert len(family.samples) == (len(metric.values) if metric.label else 1), metric.name


def test_values_are_those_of_the_facts() -> None:
    found = families(full())
    for name, labels, value in [
        ("peer_status", {"status": "training"}, 1),
        ("peer_status", {"status": "joining"}, 0),
        ("peer_inner_steps_total", {}, 77),
        ("peer_train_loss_nats", {}, 1.75),
        ("peer_eval_loss_nats", {}, 1.9),
        ("peer_eval_bits_per_byte", {}, 2.7),
        ("peer_eval_round", {}, 8),
        ("peer_tokens_processed_total", {}, 2**60 / 1000),
        ("peer_tokens_outstanding", {}, 0.5),
        ("peer_rounds_due_total", {}, 8),
        ("peer_rounds_total", {"outcome": "solo"}, 2),
        ("peer_rounds_total", {"outcome": "missed"}, 0),
        ("peer_participation_ratio", {}, 0.75),
        ("peer_exchange_bytes_total", {"direction": "received"}, 8),
        ("peer_network_bytes_total", {"direction": "sent"}, 10),
        ("peer_network_cap_bytes_per_second", {"direction": "sent"}, 125000),
        ("peer_peers_known", {"status": "training"}, 1),
        ("peer_peers_known", {"status": "finished"}, 0),
        ("peer_peers_reachable", {}, 1),
        ("peer_reachable", {}, 0),
        ("peer_directory_state", {"state": "alone"}, 1),
        ("peer_helper_restarts_total", {}, 2),
        ("peer_refusals_total", {"code": "clock"}, 4),
        ("peer_refusals_total", {"code": "other"}, 0),
        ("peer_clock_correction_seconds", {}, -0.25),
        ("peer_membership_suspected", {}, 2),
        ("peer_membership_out", {}, 1),
        ("peer_checkpoint_age_seconds", {}, 3),
        ("peer_process_resident_memory_bytes", {"process": "p2pd"}, 4096),
        ("peer_event_loop_lag_seconds", {}, 0.02),
        ("peer_build_info", {"version": "1", "python": "3", "torch": "2"}, 1),
    ]:
        assert found[name].value(**labels) == value, (name, labels)
    assert ("peer_network_cap_bytes_per_second", 'direction="received"') not in found[
        "peer_network_cap_bytes_per_second"
    ].samples, "no cap is no number"


def test_what_is_not_known_yet_has_no_sample_rather_than_a_zero() -> None:
    """A counter that is 0 before its old value is read would look like a burst."""
    joining = {"role": "peer", "run_id": "ab", "status": "joining", "bytes_sent": 0, "bytes_received": 0}
    counted = EventCounters().report(0)
    found = families(
        {
            "status": joining,
            "seen": status_facts(read_status(joining)),
            "sums": totals_facts(Totals()),
            "counted": counted,
        }
    )
    for name in ("peer_inner_steps_total", "peer_tokens_processed_total", "peer_rounds_total", "peer_train_loss_nats"):
        assert not found[name].samples, name
    assert found["peer_status"].value(status="joining") == 1
    assert found["peer_checkpoints_total"].value() == 0
    assert found["peer_partner_failures_total"].value(code="silent") == 0


def test_a_loss_that_is_not_a_number_is_still_readable() -> None:
    facts = full()
    facts["sums"]["eval"]["loss"] = math.nan
    assert math.isnan(families(facts)["peer_eval_loss_nats"].value())


def test_a_bootstrap_node_has_no_training_metrics() -> None:
    found = families({"status": {**STATUS, "role": "bootstrap", "status": "serving"}}, "bootstrap")
    assert set(found) == {metric.name for metric in METRICS if metric.bootstrap}
    assert found["peer_status"].value(status="serving") == 1


def test_prometheus_own_reader_agrees() -> None:
    text = exposition(full(), "peer").decode()
    theirs = {family.name: family.type for family in text_string_to_metric_families(text)}
    ours = {name.removesuffix("_total"): family.kind for name, family in parse(text).items()}
    assert theirs == ours


def test_a_path_into_nothing_finds_nothing() -> None:
    assert lookup({"a": {"b": 1}}, "a.b") == 1
    assert lookup({"a": {"b": 1}}, "a.b.c") is None
    assert lookup({"a": {"b": 1}}, "x.y") is None


def test_peers_of_every_status_have_a_label_value() -> None:
    from peer.protocol.messages import Status

    assert sorted(STATUSES) == sorted(status.value for status in Status)


# -- the tally


def test_exchanges_fall_into_their_buckets() -> None:
    tally = EventCounters()
    for event in (ended(0.1), ended(0.11), ended(1e6), ended(3.0, "solo")):
        tally.count(event, 0.0)
    report = tally.report(0.0)["exchange_seconds"]
    assert report["buckets"] == [1, 1, *[0] * (len(EXCHANGE_BOUNDS) - 2), 1]
    assert report["sum"] == pytest.approx(1e6 + 0.21)
    family = families({**full(), "counted": tally.report(0.0)})["peer_exchange_duration_seconds"]
    assert family.samples[f"{family.name}_bucket", 'le="0.25"'] == 2
    assert family.samples[f"{family.name}_count", ""] == 3


def test_strangers_cannot_make_label_values() -> None:
    tally = EventCounters()
    for code in ("silent", "bad_payload:checksum", "invented", "x" * 64, 'a"} 1\n'):
        tally.count(events.PartnerFailed(peer="p", round=1, code=code, reason=""), 0.0)
    assert tally.report(0.0)["partner_failures"] == {"silent": 1, "bad_payload": 1, "other": 3}
    assert counted_as(CodeText("")) is Code.OTHER


def test_only_starts_after_a_death_count_as_restarts() -> None:
    tally = EventCounters()
    started = events.TrainerStarted(device="cpu", reason="")
    for event in (started, events.TrainerDeath(cause="x"), events.TrainerDeath(cause="x"), started, started):
        tally.count(event, 0.0)
    assert tally.report(0.0)["trainer_restarts"] == 1


def test_the_age_of_a_checkpoint_counts_from_its_event_and_is_absent_before() -> None:
    tally = EventCounters()
    tally.count(events.CheckpointFailed(reason="full"), 0.0)
    assert "checkpoint" not in tally.report(1.0)
    tally.count(events.Checkpointed(round=1, folder="f", seconds=2.0, bytes=5), 10.0)
    report = tally.report(14.0)
    assert report["checkpoint"] == {"seconds": 2.0, "bytes": 5, "age_s": 4.0}
    assert (report["checkpoints"], report["checkpoint_failures"]) == (1, 1)


def test_findings_are_counted_by_what_and_nothing_is_none() -> None:
    metric = next(metric for metric in METRICS if metric.name == "peer_diagnosis_findings")
    counts = status_facts(read_status(STATUS))["found"]
    assert {what: counts[what] for what in metric.values if counts[what]} == {"slow_uplink": 1}
    nothing = {"what": "nothing", "who": "", "number": 12, "unit": "exchanges", "why": "nothing unusual"}
    counts = status_facts(read_status(STATUS | {"diagnosis": [nothing]}))["found"]
    assert not any(counts[what] for what in metric.values)


def test_every_path_into_the_status_leads_to_a_field_of_it() -> None:
    """Fails if a field is renamed without its metric."""
    told = example(freeze.frozen_swarm("pair").status["pair"])
    status = to_json(read_status(told | {"rounds": {"due": 1}}))
    for metric in METRICS:
        for path in filter(None, (metric.path, metric.per)):
            for label in metric.values[:1] or ("",):
                where = path.replace(f"{{{metric.label}}}", label)
                if where.startswith("status.") and not path.endswith(("{code}", "{outcome}", "{path}")):
                    assert lookup({"status": status}, where) is not None, where
