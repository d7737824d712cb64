"""The study of homes plays the lines of a table in the simulator, and compares hours with one machine alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.hours_to_loss import ELEMENTS, ROUND_S, HomesRun, alone_hours, missing, play, rows_of
from benchmarks.large_swarms import Record
from benchmarks.pairs_at_scale import GOSSIP, NONE, STEPS, cell, tuned_with
from benchmarks.worth import TUNING, rate
from benchmarks.worth_runs import SINGLE, WorthRun
from peer.codec.lattice.codec import Modulo
from peer.lab.sim.links import wire_bytes
from peer.trainer.data import Corpus


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads cost more than they gain with a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 40_000).astype(np.uint8)
    return Corpus(text[:30_000], text[30_000:], "0" * 64)


def tuned_records(of: WorthRun, losses: dict[int, float]) -> list[Record]:
    """Return the records of a cell that is tuned, with these losses by seed."""
    model = tuned_with(of)
    tuning = {-1: 2.2, 0: 2.0, 1: 2.1}
    made = [replace(model, lr=rate(rung), seed=TUNING).key | {"loss": loss} for rung, loss in tuning.items()]
    return made + [replace(of, lr=rate(0), seed=seed).key | {"loss": loss} for seed, loss in losses.items()]


SCALE = [
    *tuned_records(cell(NONE, 16), {0: 1.8}),
    *tuned_records(cell(SINGLE, 1, 2 * STEPS), {0: 1.6}),
    *tuned_records(cell(GOSSIP, 4), {}),
]


def test_waiting_for_a_home_line_costs_steps(corpus: Corpus) -> None:
    found = {line: play(HomesRun(2, line, 4e-3, 0, rounds=3), corpus) for line in ("median", "fast")}
    fast, median = found["fast"], found["median"]
    assert fast["steps"] == 60
    assert 45 <= median["steps"] < 57, "a step takes 15 s, and an exchange about 45 s"
    assert fast["participation"] == median["participation"] == 1
    payload = wire_bytes(Modulo(7).nbytes(ELEMENTS))
    assert median["sent_bytes_per_hour"] * ROUND_S / 3600 == pytest.approx(payload, rel=0.05)
    assert median["exchange_s"] == pytest.approx(payload / (18.4 * 125_000), rel=0.05)


def test_hours_of_one_machine_lie_between_those_of_its_runs() -> None:
    shortest = STEPS * 15 / 3600
    assert shortest < alone_hours(SCALE, 1.7, seed=0) < 2 * shortest
    assert alone_hours(SCALE, 1.5, seed=0) == math.inf
    assert alone_hours(SCALE, 1.9, seed=0) == 0
    assert math.isnan(alone_hours(SCALE, 1.7, seed=7))


def test_the_plan_plays_the_cells_whose_rate_is_tuned() -> None:
    runs = list(missing([], SCALE))
    assert {run.peers for run in runs} == {4}
    assert {run.lr for run in runs} == {rate(0)}
    kept = [{name: getattr(runs[0], name) for name in HomesRun.__dataclass_fields__} | FOUND]
    assert list(missing(kept, SCALE)) == runs[1:]
    ((line, peers, seeds, loss, _, hours, *_),) = rows_of(kept, SCALE)
    assert (line, peers, seeds, loss) == ("median", 4, 1, 1.7)
    assert hours == pytest.approx(alone_hours(SCALE, 1.7, seed=0))


FOUND = {"loss": 1.7, "steps": 1700.0, "participation": 1.0, "exchange_s": 45.0, "sent_bytes_per_hour": 10**9}
