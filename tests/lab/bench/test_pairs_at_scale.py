"""The study of large swarms of pairs: its stacks compute the same as `benchmarks.worth_runs`, and an interrupted run
resumes from its save."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import large_swarms, pairs_at_scale, scale_plots, worth_runs
from benchmarks.hours_to_loss import HomesRun
from benchmarks.large_swarms import Save, play
from benchmarks.pair_breakdown import alone
from benchmarks.pair_breakdown import run_of as run_of_breakdown
from benchmarks.pairs_at_scale import CELLS, MEAN, PLAN, Stage, cell, next_batch, part_of, results_of, stage, tuned_with
from benchmarks.worth import RUNGS, TUNING, name_of, rate, run_of
from benchmarks.worth_runs import WorthRun
from peer.run.sections import LlamaSection
from peer.trainer.data import Corpus

TINY = LlamaSection(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
)
NOWHERE = Save(None, [])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 40_000).astype(np.uint8)
    return Corpus(text[:30_000], text[30_000:], "0" * 64)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (worth_runs, large_swarms):
        monkeypatch.setattr(module, "EVAL_WINDOWS", 16)
        monkeypatch.setattr(module, "MODEL", TINY)
    monkeypatch.setattr(large_swarms, "ROWS", 3)


def run(method: str) -> WorthRun:
    return WorthRun(method=method, peers=4, steps=6, every=2, batch=2, lr=3e-3, seed=5)


@pytest.mark.parametrize("method", ["gossip", "noloco", "gasloc", "diloco", "heloco", "none", "ddp"])
def test_stacks_of_three_end_where_one_stack_ends(method: str, corpus: Corpus) -> None:
    (whole,) = worth_runs.play([run(method)], corpus)
    (cut,) = play([run(method)], corpus, NOWHERE, TINY)
    for measure in ("loss", "worst", "soup"):
        assert cut[measure] == pytest.approx(whole[measure], abs=2e-5), measure
    assert cut["spread"] == pytest.approx(whole["spread"], abs=1e-5)
    assert [at for at, _ in cut["curve"]] == [1, 2, 3]
    assert cut["curve"][-1][1] == pytest.approx(cut["loss"], abs=1e-6)


@pytest.mark.parametrize("methods", [["gossip", "noloco"], ["heloco", "none"], ["ddp"]])
def test_a_run_goes_on_from_its_save_as_if_nothing_had_happened(
    methods: list[str], corpus: Corpus, tmp_path: Path
) -> None:
    runs = [run(method) for method in methods]
    expected = play(runs, corpus, NOWHERE, TINY)
    for _ in range(3):
        assert play(runs, corpus, Save(tmp_path, runs), TINY, ends=time.monotonic()) == []
    found = play(runs, corpus, Save(tmp_path, runs), TINY)
    for one, other in zip(found, expected, strict=True):
        assert one | {"core_seconds": 0} == other | {"core_seconds": 0}
    assert len(list(tmp_path.iterdir())) == 1
    Save(tmp_path, runs).remove()
    assert not list(tmp_path.iterdir())


def test_a_record_names_its_run() -> None:
    for of in CELLS:
        assert run_of(of.key) == of


def played(plan: list[Stage], most: int = 1000) -> list[dict[str, Any]]:
    """Play a plan without any model: rung 1 is the best, and more peers are better."""
    records: list[dict[str, Any]] = []
    while (batch := next_batch(records, plan)) and len(records) < most:
        assert len({one.steps for one in batch}) == 1
        assert len(batch) == 1 or sum(one.peers for one in batch) <= 32
        for one in batch:
            loss = 2 + abs(RUNGS[one.lr] - 1) - math.log10(one.peers * one.steps) / 10 + one.seed / 100
            measures = dict.fromkeys(("loss", "worst", "soup", "spread"), loss)
            records.append(one.key | measures | {"core_seconds": 1.0, "curve": []})
    return records


def test_a_plan_is_tuned_in_small_swarms_and_each_run_is_played_once() -> None:
    records = played(PLAN)
    keys = [str(run_of(one)) for one in records]
    assert len(keys) == len(set(keys))
    tried = [one for one in records if one["seed"] == TUNING]
    assert {one["peers"] for one in tried} == {1, 4, 16}
    assert all(one["lr"] == rate(1) for one in records if one["seed"] != TUNING)
    seeds = {of: sum(name_of(one) == name_of(of) and one["seed"] != TUNING for one in records) for of in CELLS}
    assert {count for of, count in seeds.items() if of.peers == 1024} == {1}
    assert {count for of, count in seeds.items() if of.peers < 1024} == {2}


def test_a_part_of_the_plan_is_played_by_itself() -> None:
    records = played(part_of(PLAN, "gossip,mean,ddp", "16"))
    assert {one["peers"] for one in records} == {16}
    assert {pairs_at_scale.method_of(run_of(one)) for one in records} == {"gossip", MEAN, "ddp"}


def test_results_have_intervals_and_a_speed_up() -> None:
    records = played([stage(("gossip", MEAN, "none"), (4, 16)), stage(["single"], (1,), 4000)])
    found = {(pairs_at_scale.method_of(one.run), one.run.peers): one for one in results_of(records)}
    assert set(found) == {(name, peers) for name in ("gossip", MEAN, "none") for peers in (4, 16)} | {("single", 1)}
    (width,) = {one.half_width for one in found.values()}
    assert width == pytest.approx(pairs_at_scale.quantile(7) * math.sqrt(5e-5) / math.sqrt(2))
    apart = found["gossip", 16].difference, found["gossip", 16].difference_half
    assert apart == (pytest.approx(-math.log10(4) / 10), pytest.approx(0, abs=1e-12))
    assert found["gossip", 4].difference == 0
    assert found["none", 16].speed_ups == [pytest.approx(1)] * 2
    assert {len(row) for row in pairs_at_scale.rows_of(found.values())} == {len(pairs_at_scale.HEADS)}


def test_more_peers_have_the_rate_of_sixteen_and_single_has_its_own() -> None:
    assert tuned_with(cell("gossip", 1024)) == tuned_with(cell("gossip", 16, 6000)) == cell("gossip", 16)
    assert tuned_with(cell("single", 1, 4000)) == cell("single", 1, 4000)


def test_the_plots_are_drawn_from_the_kept_runs_alone(tmp_path: Path) -> None:
    scale, breakdown, homes = (tmp_path / f"{name}.jsonl" for name in ("scale", "breakdown", "homes"))
    assert scale_plots.plots(tmp_path, scale, breakdown, homes) == []
    records = played([stage(("gossip", MEAN, "none"), (4, 16)), stage(["single"], (1,), 4000)])
    scale.write_text("".join(json.dumps(one) + "\n" for one in records))
    runs = [alone(0).key | {"loss": 2.0}, run_of_breakdown("clip", "spread", 8, 0).key | {"loss": 1.0}]
    breakdown.write_text("".join(json.dumps(one) + "\n" for one in runs))
    some = HomesRun(4, "median", 4e-3, 0)
    homes.write_text(json.dumps({**asdict(some), "loss": records[0]["loss"]}) + "\n")
    made = scale_plots.plots(tmp_path, scale, breakdown, homes)
    assert [file.name for file in made] == ["pairs-at-scale.svg", "pair-breakdown.svg", "hours-to-loss.svg"]
    assert all(ElementTree.parse(file).getroot().tag.endswith("svg") for file in made)
