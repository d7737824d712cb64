"""Small swarms under random faults: no promise is broken, whenever the faults occur."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.scenario import PRESETS, play


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param([*range(25), 42], id="26"),  # with seed 42 a group refuses a member
        pytest.param([*range(25, 100)], id="75", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("preset", PRESETS)
def test_no_seed_breaks_a_promise(preset: str, seeds: list[int]) -> None:
    done, outcomes = 0, Counter[str]()
    for seed in (seed for seed in seeds if seed % len(PRESETS) == PRESETS.index(preset)):
        played = play(seed, preset)
        assert not played.broken, str(played)
        done += played.done
        outcomes += played.outcomes
    assert done >= len(seeds) // 2, "a simulation without faults shows nothing"
    if preset != "streaming-diloco":  # its rounds are so short that no fault makes a member miss one
        assert outcomes["refused" if "diloco" in preset else "solo"] > 0
    assert preset == "none" or outcomes["exchanged"] > 2 * (outcomes.total() - outcomes["exchanged"])


FOUND = [("diloco", 380), ("diloco", 731), ("streaming-diloco", 711), ("streaming-diloco", 913)]
"""Seeds in which the group was divided before a fragment's first result. Each once gave two group states."""


@pytest.mark.parametrize(("preset", "seed"), FOUND)
def test_a_group_that_is_cut_apart_as_it_begins_has_one_truth(preset: str, seed: int) -> None:
    assert not (played := play(seed, preset)).broken, str(played)
