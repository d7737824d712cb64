"""A hundred small swarms under random faults: no promise is broken, whatever happens when."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.scenario import PRESETS, play

SEEDS = 100


@pytest.mark.parametrize("preset", PRESETS)
def test_no_seed_breaks_a_promise(preset: str) -> None:
    done, outcomes = 0, Counter[str]()
    for seed in range(PRESETS.index(preset), SEEDS, len(PRESETS)):
        played = play(seed, preset)
        assert not played.broken, str(played)
        done += played.done
        outcomes += played.outcomes
    assert done >= SEEDS // 2, "a simulation without faults shows nothing"
    assert outcomes["refused" if "diloco" in preset else "solo"] > 0
    assert preset == "none" or outcomes["exchanged"] > 2 * (outcomes.total() - outcomes["exchanged"])
