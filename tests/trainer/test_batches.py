from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peer.trainer.batches import draw, holdout_windows

TRAIN = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
PLACE: dict[str, Any] = {"context": 16, "batch": 8, "seed": 1, "peer_id": "a", "round_": 2, "step": 3}


def test_a_draw_is_a_function_of_its_arguments_only() -> None:
    first = draw(TRAIN, **PLACE)
    np.random.default_rng(5).random(10)
    assert first.shape == (8, 17)
    assert np.array_equal(first, draw(TRAIN, **PLACE))


@pytest.mark.parametrize("change", [{"seed": 2}, {"peer_id": "b"}, {"round_": 3}, {"step": 4}])
def test_every_argument_matters(change: dict[str, Any]) -> None:
    assert not np.array_equal(draw(TRAIN, **PLACE), draw(TRAIN, **PLACE | change))


def test_the_draw_is_part_of_the_run_and_does_not_change_between_versions() -> None:
    train = (np.arange(1000) % 256).astype(np.uint8)
    windows = draw(train, context=8, batch=4, seed=0, peer_id="p", round_=0, step=0)
    assert windows[:, 0].tolist() == [6, 188, 147, 23]
    assert np.all(np.diff(windows.astype(np.uint8), axis=1) == 1), "each window is a run of neighbours"


def test_windows_reach_both_ends_of_the_data() -> None:
    tiny = np.arange(20, dtype=np.uint8)
    starts = draw(tiny, **PLACE | {"batch": 500})[:, 0]
    assert set(starts.tolist()) == {0, 1, 2, 3}


def test_holdout_windows_are_evenly_spaced_over_all_of_it() -> None:
    windows = holdout_windows(np.arange(101, dtype=np.uint8), context=20, count=5)
    assert windows.shape == (5, 21)
    assert windows[:, 0].tolist() == [0, 20, 40, 60, 80]
    assert windows[-1, -1] == 100
