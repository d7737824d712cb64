"""Tests of the clip: its radius, its memory, and how far a patient liar can raise it."""

import json
import math
import random

import pytest

from peer.protocol.pair.clip import (
    CAP,
    MIXED,
    MOST_RATIO,
    REMEMBERED,
    SLACK,
    ClipMemory,
    FragmentDistances,
    WorkRatio,
)

APART = math.sqrt(2)


def test_first_partners_are_measured_by_our_own_work() -> None:
    memory = FragmentDistances()
    clip = memory.clip(work=2.0, distance=100.0, ratio=1.0)
    assert clip.radius == pytest.approx(SLACK * MIXED * APART * 2.0)
    assert clip.taken == pytest.approx(clip.radius / 100.0)
    assert list(memory.distances) == [2 * clip.radius]


def test_replicas_that_mix_and_work_on_grow_apart_as_far_as_the_first_radius_allows() -> None:
    """Four peers that work in independent directions, paired in turn."""
    mean, apart = [[0.0] * 4 for _ in range(4)], 0.0
    for round_ in range(20):
        works = [[mine + (axis == peer) for axis, mine in enumerate(mean[peer])] for peer in range(4)]
        partner_of = [peer ^ (1 + round_ % 3) for peer in range(4)]
        apart = max(apart, *(math.dist(works[peer], works[other]) for peer, other in enumerate(partner_of)))
        mean = [
            [(one + two) / 2 for one, two in zip(works[peer], works[other], strict=True)]
            for peer, other in enumerate(partner_of)
        ]
    assert APART < apart <= MIXED * APART


def test_from_the_fourth_partner_on_their_median_counts() -> None:
    memory = FragmentDistances()
    for distance in (3.0, 3.1, 3.2, 3.3):
        assert memory.clip(2.0, distance, 1.0).taken == 1.0
    clip = memory.clip(2.0, 100.0, 1.0)
    assert clip.radius == pytest.approx(SLACK * 3.1), "the lower of the two in the middle"


def test_without_own_work_nothing_is_taken_and_nothing_learnt() -> None:
    memory = FragmentDistances()
    clip = memory.clip(0.0, 1.0, 1.0)
    assert (clip.radius, clip.taken) == (0.0, 0.0)
    assert not memory.distances
    assert memory.clip(0.0, 0.0, 1.0).taken == 1.0


@pytest.mark.parametrize("colluders", [0.3, 1.0])
def test_a_patient_liar_moves_the_radius_no_further_than_our_work_allows(colluders: float) -> None:
    """For 200 rounds the liar stays just within what is accepted, and so raises the median."""
    rng, memory, largest = random.Random(1), FragmentDistances(), 0.0
    for _ in range(200):
        work = rng.uniform(0.9, 1.1)
        lies = rng.random() < colluders
        clip = memory.clip(work, largest * 2 if lies else APART * work * rng.uniform(0.95, 1.05), 1.0)
        largest = max(largest, clip.radius)
    assert largest <= SLACK * CAP * APART * 1.1
    if colluders < 0.5:
        assert largest <= 2 * SLACK * APART * 1.1, "a minority hardly moves the median"


def test_without_the_cap_it_would_grow_for_ever() -> None:
    """The same liar against the median without the cap, which shows that the cap is needed."""
    distances, radius = [1.0] * REMEMBERED, 0.0
    for _ in range(200):
        radius = SLACK * sorted(distances)[(len(distances) - 1) // 2]
        distances = [*distances[1:], 2 * radius]
    assert radius > 1e6


def test_slow_machine_takes_the_longer_work_of_fast_partners() -> None:
    ratio = WorkRatio()
    assert ratio.value == 1.0
    for _ in range(REMEMBERED):
        ratio.observe(2000, 100)
    assert ratio.value == MOST_RATIO
    memory = FragmentDistances()
    for _ in range(REMEMBERED):
        clip = memory.clip(1.0, 20.0, ratio.value)
    assert clip.taken == 1.0


def test_ratio_is_no_liars_to_choose() -> None:
    ratio = WorkRatio()
    for number in range(REMEMBERED):
        ratio.observe(10**15 if number % 3 == 0 else 100, 100)
    ratio.observe(0, 100)
    ratio.observe(100, 0)
    assert ratio.value == 1.0


def test_memory_outlives_a_restart() -> None:
    memory = ClipMemory()
    memory.ratio.observe(300, 100)
    for number in range(2 * REMEMBERED):
        memory.of(number % 2).clip(1.0, number / 10, 1.0)
    again = ClipMemory.from_json(json.loads(json.dumps(memory.to_json())))
    assert again == memory
    assert len(memory.of(0).distances) == REMEMBERED


@pytest.mark.parametrize(
    "kept",
    [
        None,
        [],
        {"fragments": [], "partners": {}},
        {"fragments": {"0": {"distances": ["a", -1.0, math.inf, math.nan, True], "work": None}, "-1": {}, "x": 3}},
        {"fragments": {"99999": {"distances": [1.0]}}},
    ],
)
def test_memory_that_is_none_of_ours_is_forgotten(kept: object) -> None:
    memory = ClipMemory.from_json(kept)
    assert not any(one.distances or one.work for one in memory.fragments.values())
