"""Plans: their choices and sources, and that their manifest is valid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peer.errors import UsageError
from peer.lab.planning.planner import ALONE, Intent, plan
from peer.lab.sim.links import profile
from peer.methods.registry import PRESETS
from peer.run.costs import cost_of
from peer.run.load import bytes_a_day
from peer.run.manifest import default_text, derive, parse_manifest
from peer.run.resolve import resolve

PAPERS = Intent(params=125e6, tokens=None, peers=4, link=profile("datacentre"), flops=100e12)
KEYS = (
    *("preset", "sync_every", "fragments", "codec", "inner_lr", "batch", "outer_lr", "expected_loss", "worth"),
    *("bytes_per_day", "compute_share", "days"),
)


def numbers(intent: Intent) -> dict[str, Any]:
    return plan(intent).to_json()


def test_the_papers_setting_gives_the_papers_numbers() -> None:
    planned = plan(replace(PAPERS, vocab=32_768))
    told = planned.to_json()
    assert tuple(told) == KEYS
    assert (told["preset"], told["sync_every"], told["outer_lr"]) == ("diloco", 30, 0.6)
    assert float(f"{told['inner_lr']:.1e}") == 2.4e-3
    assert told["batch"] == 18
    assert told["expected_loss"] == pytest.approx(3.12, abs=0.01)
    assert [one.outside + one.warnings for one in planned.numbers.values()] == [()] * len(KEYS)


@pytest.mark.parametrize(("peers", "rate"), [(2, 0.6), (4, 0.6), (8, 0.8)])
def test_the_outer_learning_rate_grows_with_the_peers(peers: int, rate: float) -> None:
    assert numbers(replace(PAPERS, peers=peers))["outer_lr"] == rate


def test_every_number_has_its_source() -> None:
    planned = plan(PAPERS)
    assert all(one.reason for one in (*planned.numbers.values(), *planned.asides.values()))


def test_a_narrow_link_makes_exchanges_rare_and_cut() -> None:
    home = replace(PAPERS, link=profile("home"), flops=30e12)
    slow, fast = numbers(home), numbers(replace(home, link=profile("fibre")))
    assert slow["sync_every"] > fast["sync_every"]
    assert slow["preset"] == "streaming-diloco"
    assert slow["fragments"] > 1
    assert slow["compute_share"] >= 0.95


def test_a_link_that_carries_too_little_is_told() -> None:
    planned = plan(replace(PAPERS, params=1e9, link=profile("dsl"), flops=1e15))
    assert planned.numbers["compute_share"].value < 0.95
    assert planned.numbers["compute_share"].warnings
    assert "nothing that was tried" in planned.numbers["sync_every"].reason


@pytest.mark.parametrize(
    ("change", "preset"),
    [
        ({"peers": 64}, "streaming-noloco"),
        ({"speeds": 4.0}, "gossip"),
        ({"peers": 1}, ALONE),
        ({"preset": "noloco"}, "noloco"),
    ],
)
def test_the_method_follows_the_peers(change: dict[str, Any], preset: str) -> None:
    assert numbers(replace(PAPERS, **change))["preset"] == preset


def test_a_short_run_keeps_the_presets_momentum() -> None:
    planned = plan(replace(PAPERS, tokens=1e8))
    assert planned.numbers["outer_lr"].value == 0.7
    assert planned.numbers["outer_lr"].outside
    assert not any("momentum" in setting for setting in planned.settings)


def test_scatter_costs_time_only_where_somebody_waits() -> None:
    steady, scattered = plan(PAPERS), plan(replace(PAPERS, scatter=0.5))
    assert scattered.numbers["compute_share"].value < steady.numbers["compute_share"].value
    unequal = replace(PAPERS, speeds=4.0)
    assert numbers(replace(unequal, scatter=0.5))["compute_share"] == numbers(unequal)["compute_share"]


@pytest.mark.parametrize("link", ["datacentre", "home", "dsl"])
@pytest.mark.parametrize(
    "change",
    [
        *({"preset": preset} for preset in PRESETS),
        {},
        {"peers": 64},
        {"speeds": 4.0},
        {"peers": 1},
        {"params": 2e5, "context": 64},
        {"params": 2.4e9},
    ],
)
def test_every_plan_is_a_manifest(change: dict[str, Any], link: str) -> None:
    planned = plan(replace(PAPERS, link=profile(link), **change))
    manifest = parse_manifest(derive(default_text(), planned.settings).encode())
    method, told = resolve(manifest.sync), planned.to_json()
    assert method.codec == told["codec"]
    assert method.fragments == told["fragments"]
    assert method.outer_lr == told["outer_lr"]
    assert manifest.train.batch == told["batch"]
    assert manifest.optimizer.lr == pytest.approx(told["inner_lr"], rel=0.01)
    assert (method.sync_every == told["sync_every"]) == (method.clock == "steps")


def test_bytes_are_those_that_the_manifest_shows() -> None:
    """In pairs, where the cost does not depend on the size of the swarm. Bytes are counted on the line, as in the
    contract and in `peer doctor`."""
    planned = plan(replace(PAPERS, speeds=4.0, flops=1e12, link=profile("lan")))
    manifest = parse_manifest(derive(default_text(), planned.settings).encode())
    method = resolve(manifest.sync)
    cost = cost_of(manifest.model, method)
    sync_s = method.sync_every / planned.numbers["compute_share"].value
    expected = bytes_a_day(method, cost.bytes_per_sync, sync_s)
    assert planned.numbers["bytes_per_day"].value == pytest.approx(expected, rel=0.01)


def test_days_are_tokens_over_the_machines() -> None:
    told = plan(replace(PAPERS, tokens=2.5e9)).to_json()
    days = 6 * 125e6 * 2.5e9 / (4 * 100e12) / told["compute_share"] / 86400
    assert told["days"] == pytest.approx(days, rel=0.03)


@pytest.mark.parametrize(
    ("change", "flag"),
    [({"peers": 0}, "--peers"), ({"flops": 0.0}, "--machine"), ({"share": 1.0}, "--share"), ({"context": 1}, "--cont")],
)
def test_values_that_are_no_plan_are_refused(change: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        replace(PAPERS, **change)


@pytest.mark.parametrize("change", [{"flops": 1e18, "params": 2e5, "context": 8}, {"flops": 1e9, "params": 1e11}])
def test_machines_that_no_manifest_could_hold_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="inner step"):
        plan(replace(PAPERS, **change))


@pytest.mark.parametrize("vocab", [256, 50_257])
def test_the_loss_of_another_tokenizer_is_withheld(vocab: int) -> None:
    loss = plan(replace(PAPERS, vocab=vocab)).numbers["expected_loss"]
    assert loss.value is None
    assert f"{vocab:,} tokens" in loss.reason
