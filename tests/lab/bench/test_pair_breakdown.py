"""The study of the breakdown point: each attack sends the intended params, and the bisection finds the point."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import large_swarms, pair_breakdown, worth_runs
from benchmarks.large_swarms import Save, play
from benchmarks.lying_meetings import (
    ACCEPTANCES,
    ATTACKS,
    HonestPairs,
    Known,
    LiarsRun,
    cs_plus_radius,
    honest_pairs,
    little_deviation,
)
from benchmarks.pair_breakdown import LIARS, PEERS, Played, alone, run_of
from peer.exchange.pair.acceptance import CHECK, CLIP, FINITE
from peer.exchange.validation import check_partner
from peer.run.sections import LlamaSection
from peer.trainer.data import Corpus
from peer.trainer.models.llama import first_params, layout_of

TINY = LlamaSection(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
)
SHORT = LiarsRun(method="noloco", peers=6, steps=8, every=2, batch=2, lr=3e-3, seed=5)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 40_000).astype(np.uint8)
    return Corpus(text[:30_000], text[30_000:], "0" * 64)


@pytest.fixture(autouse=True)
def _few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_swarms, "EVAL_WINDOWS", 16)
    monkeypatch.setattr(worth_runs, "EVAL_WINDOWS", 16)


def played(run: LiarsRun, corpus: Corpus) -> dict[str, Any]:
    (found,) = play([run], corpus, Save(None, []), TINY, honest_pairs(TINY, corpus))
    return found


def test_without_liars_and_without_a_clip_pairs_are_those_of_the_study_of_scale(corpus: Corpus) -> None:
    class SamePartners(HonestPairs):
        def partners(self) -> list[int]:
            return worth_runs.partners(self.run.peers, self.run.seed, self.round)

    (found,) = play(
        [SHORT], corpus, Save(None, []), TINY, lambda *given: SamePartners(*given, model=TINY, corpus=corpus)
    )
    (expected,) = play([SHORT], corpus, Save(None, []), TINY)
    assert found["loss"] == expected["loss"]
    assert found["spread"] == expected["spread"]


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_lie_meets_every_acceptance(attack: str, acceptance: str, corpus: Corpus) -> None:
    found = played(replace(SHORT, liars=2, attack=attack, acceptance=acceptance), corpus)
    assert found["liars_met"] > 0
    assert (found["attack"], found["acceptance"], found["liars"]) == (attack, acceptance, 2)
    if acceptance == FINITE:
        assert found["taken_of_liars"] == 1
    if attack == "spread" and acceptance != FINITE:
        assert found["taken_of_liars"] < 0.5
    assert found["loss"] is None or found["loss"] > 0


def test_lies_are_decoded_and_the_spread_leads_away_from_the_mean() -> None:
    params = torch.stack([first_params(TINY, seed) for seed in range(6)])
    known = Known(params, torch.zeros_like(params[0]), params.mean(0), 1.0)
    for attack in ATTACKS.values():
        check_partner(attack(known, 2), params[2])
    away, deviation = ATTACKS["spread"](known, 2) - params[2], params[2] - known.mean
    assert torch.cosine_similarity(away, deviation, dim=0) == pytest.approx(1, abs=1e-5)
    assert float(ATTACKS["inner product"](known, 2) @ known.work) < 0


def test_a_little_is_as_much_as_the_paper_says() -> None:
    assert little_deviation(40, 10) == pytest.approx(0.253, abs=1e-3), "16 of 40 are farther out"


def test_the_threshold_of_cs_plus_is_passed_by_twice_the_liars() -> None:
    distances = [4.0, 1.0, 3.0, 2.0, 8.0, 7.0, 6.0, 5.0]
    assert cs_plus_radius(distances, 0.0) == 8
    assert cs_plus_radius(distances, 0.25) == 4
    assert cs_plus_radius(distances, 0.3) == 3
    assert cs_plus_radius(distances, 0.5) == 0


def test_a_peer_seeks_others_than_those_that_it_refused(corpus: Corpus) -> None:
    run = replace(SHORT, liars=2, attack="negate", acceptance=CHECK)
    swarm = HonestPairs(
        run,
        layout_of(TINY),
        torch.stack([first_params(TINY, 0)] * run.peers),
        model=TINY,
        corpus=corpus,
    )
    for memory in swarm._memories:
        for liar in (6, 7):
            for _ in range(2):
                memory.last_choices.refused(str(liar), -1)
    assert swarm.partners()[6:] == [7, 6]


def test_the_bisection_finds_each_point_and_plays_it_with_both_seeds() -> None:
    points = {one: number for number, one in enumerate((a, b) for a in ACCEPTANCES for b in ATTACKS)}
    records: list[dict[str, Any]] = []
    while (run := Played(records).next_run()) is not None:
        breaks = run.attack and LIARS.index(run.liars) >= points[run.acceptance, run.attack] % 7
        loss = 3.0 if run.method == "none" else None if breaks else 2.0
        records.append(run.key | {"loss": loss, "spread": 0.1})
        assert len(records) < 200
    found = Played(records)
    for one, point in points.items():
        edges = [0, *LIARS, PEERS]
        assert found.bounds(*one) == (edges[point % 7], edges[point % 7 + 1])
    assert len({str(one) for one in records}) == len(records)
    assert found.broken(CLIP, "spread", 4, 1) is not None or found.bounds(CLIP, "spread")[0] != 4
    rows = list(pair_breakdown.rows_of(found))
    assert {len(row) for row in rows} == {len(pair_breakdown.HEADS)}
    assert len(rows) == len(records)


def test_a_run_that_diverged_is_broken() -> None:
    records = [alone(0).key | {"loss": 3.0}, run_of(FINITE, "x-10", 8, 0).key | {"loss": None}]
    assert Played(records).broken(FINITE, "x-10", 8)
    assert Played(records).loss(run_of(FINITE, "x-10", 8, 0)) == math.inf
