from __future__ import annotations

import itertools
import math
import random
import re
from typing import Any

import numpy as np
import pytest

from peer.protocol import round_lengths
from peer.protocol.ledger import cut_work
from peer.protocol.round_lengths import Growth, growth_problem, quadratic_growth, round_of, slots_before, slots_of
from peer.protocol.schedule import RoundClock

GROWN: Growth = ((3, 2), (5, 7), (6, 1))


def test_rounds_that_do_not_grow_are_slots() -> None:
    assert [slots_before((), round_) for round_ in (-2, 0, 5)] == [-2, 0, 5]
    assert [round_of((), slot) for slot in (-1, 0, 5)] == [-1, 0, 5]


def test_rounds_cover_the_slots_without_a_gap() -> None:
    lengths = [1, 1, 1, 2, 2, 7, 1, 1, 1]
    assert [slots_of(GROWN, round_) for round_ in range(9)] == lengths
    assert [slots_before(GROWN, round_) for round_ in range(10)] == [0, *itertools.accumulate(lengths)]
    inside = [round_ for round_, length in enumerate(lengths) for _ in range(length)]
    assert [round_of(GROWN, slot) for slot in range(sum(lengths))] == inside
    assert round_of(GROWN, -1) == -1


def test_growth_may_begin_with_the_run() -> None:
    assert [slots_before(((0, 3),), round_) for round_ in (-1, 0, 1, 2)] == [-1, 0, 3, 6]
    assert [round_of(((0, 3),), slot) for slot in (-1, 0, 2, 3)] == [-1, 0, 0, 1]


@pytest.mark.parametrize(
    ("growth", "total", "reason"),
    [
        (GROWN, 16, ""),
        (GROWN, 13, "round 5 would end after the run: 6 of its 7 lengths fit"),
        (((5, 2), (5, 3)), 40, "the rounds of the changes must ascend"),
        (((-1, 2),), 40, r"a change is \[round, length\]"),
        (((1, 0),), 40, r"a change is \[round, length\]"),
    ],
)
def test_growth_that_does_not_fit_the_run_is_told(growth: Growth, total: int, reason: str) -> None:
    assert re.match(reason or "$", growth_problem(growth, total))


@pytest.mark.parametrize(("every", "fragments"), [(100, 9), (100, 8), (100, 17), (100, 37), (7, 7), (6, 4), (10**7, 3)])
def test_rounds_in_steps_differ_by_at_most_one_and_a_fragment_keeps_its_distance(every: int, fragments: int) -> None:
    clock = RoundClock("steps", every, fragments)
    lengths = [clock.steps_of(round_) for round_ in range(4 * fragments)]
    assert set(lengths) <= {every // fragments, every // fragments + 1}
    assert min(lengths) >= 1
    for first in range(3 * fragments):
        assert sum(lengths[first : first + fragments]) == every
        assert clock.worked(first + fragments - 1) == every


def test_the_papers_fragments_are_these_steps() -> None:
    """Nine fragments (eight of three layers, and the embedding) with H = 100: a spacing of 11, as in the paper."""
    clock = RoundClock("steps", 100.0, 9)
    ends = list(itertools.accumulate(clock.steps_of(round_) for round_ in range(18)))
    assert ends == [11, 22, 33, 44, 55, 66, 77, 88, 100, 111, 122, 133, 144, 155, 166, 177, 188, 200]


def test_uneven_rounds_are_exact_at_any_age() -> None:
    """Floats would be rounded: the step numbers exceed 2 ** 53."""
    clock = RoundClock("steps", 10.0**7, 3)
    late = 3 * 10**12
    assert [clock.steps_of(late + round_) for round_ in range(3)] == [3333333, 3333333, 3333334]


def test_rounds_that_grow_in_seconds() -> None:
    clock = RoundClock("seconds", 20.0, fragments=2, start=100.0, growth=GROWN)
    ends = [clock.due_at(round_) for round_ in range(7)]
    assert ends == [110.0, 120.0, 130.0, 150.0, 170.0, 240.0, 250.0]
    assert [clock.round_at(at) for at in (99.0, 100.0, 149.9, 150.0, 239.9, 240.0)] == [-1, 0, 3, 4, 5, 6]
    assert [clock.worked(round_) for round_ in range(7)] == [20.0, 20.0, 20.0, 30.0, 40.0, 90.0, 80.0]


def test_both_clocks_cut_the_same_rounds() -> None:
    steps, seconds = RoundClock("steps", 12, 3, growth=GROWN), RoundClock("seconds", 12.0, 3, growth=GROWN)
    assert [steps.worked(round_) for round_ in range(9)] == [seconds.worked(round_) for round_ in range(9)]
    ends = itertools.accumulate(steps.steps_of(round_) for round_ in range(9))
    assert list(ends) == [seconds.due_at(round_) for round_ in range(9)]


@pytest.mark.parametrize("joined", [100.0, 104.0, 129.9, 130.0, 151.0, 171.0, 239.0])
def test_a_joiner_of_grown_rounds_works_one_sync_every_before_its_first(joined: float) -> None:
    clock = RoundClock("seconds", 20.0, fragments=2, start=100.0, growth=GROWN)
    first = clock.first_round_for(joined)
    assert clock.due_at(first) - joined >= 20.0
    assert clock.due_at(first - 1) - joined < 20.0


def test_the_work_of_a_grown_round_is_applied_whole_and_that_of_two_is_scaled() -> None:
    clock = RoundClock("steps", 10, growth=((4, 3),))
    assert cut_work(300, 1, steps=30, nominal_steps=clock.worked(4)).share == 1.0
    assert cut_work(300, 1, steps=30, nominal_steps=clock.worked(3)).share == pytest.approx(1 / 3)
    assert cut_work(600, 1, steps=60, nominal_steps=clock.worked(5)).share == pytest.approx(1 / 2)


# -- the quadratic rule ------------------------------------------------------------------------------------------------


def cosine(progress: float, warmup: float = 0.1, final: float = 0.05, peak: float = 4e-3) -> float:
    """Return the learning rate by an independent formula, with the peak during the warm-up."""
    fall = max(0.0, (progress - warmup) / (1 - warmup))
    return peak * (final + (1 - final) * 0.5 * (1 + np.cos(np.pi * fall)))


def expected(growth_lr: float, total: int) -> list[int]:
    """Return the lengths of all rounds, by the paper's formula alone."""
    lengths = list[int]()
    while (begun := sum(lengths)) < total:
        exact = np.float64(growth_lr) ** 2 / np.float64(cosine(begun / total)) ** 2
        lengths.append(int(min(max(1, np.floor(exact)), total - begun)))
    return lengths


def lengths_of(growth: Growth, total: int) -> list[int]:
    return [slots_of(growth, round_) for round_ in range(round_of(growth, total))]


@pytest.mark.parametrize("growth_lr", [1e-4, 3e-3, 4.4e-3, 6e-3, 9e-3, 0.5])
@pytest.mark.parametrize("total", [1, 7, 80, 1000])
def test_the_quadratic_rule_is_the_papers(growth_lr: float, total: int) -> None:
    growth = quadratic_growth(growth_lr, cosine, total)
    assert lengths_of(growth, total) == expected(growth_lr, total)
    assert growth_problem(growth, total) == ""
    assert sum(lengths_of(growth, total)) == total


def test_golden_lengths_of_the_quadratic_rule() -> None:
    """Lengths for a run of 40 slots, computed by another program. Frozen, because manifests contain these integers."""
    growth = quadratic_growth(4.4e-3, cosine, 40)
    assert lengths_of(growth, 40) == GOLDEN


GOLDEN = [*[1] * 16, 2, 2, 3, 5, 12]


def test_a_learning_rate_of_zero_ends_the_run_in_one_round() -> None:
    assert quadratic_growth(1.0, lambda progress: 0.0, 9) == ((0, 9),)


MUTANTS: dict[str, Any] = {
    "not squared": lambda ratio: ratio**0.5,
    "rounded up": lambda ratio: math.ceil(ratio),
    "1 % less": lambda ratio: 0.99 * ratio,
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_golden_lengths_notice_an_error(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_lengths.math, "floor", lambda ratio: int(mutant(ratio)))
    assert lengths_of(quadratic_growth(4.4e-3, cosine, 40), 40) != GOLDEN


def test_any_growth_and_its_inverse_agree() -> None:
    rng = random.Random(5)
    for _ in range(50):
        firsts = sorted(rng.sample(range(30), 4))
        growth = tuple((first, rng.randint(1, 5)) for first in firsts)
        for round_ in range(40):
            begun = slots_before(growth, round_)
            assert round_of(growth, begun) == round_
            assert round_of(growth, begun + slots_of(growth, round_) - 1) == round_
