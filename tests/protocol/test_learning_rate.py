from __future__ import annotations

import math

import pytest

from peer.protocol.learning_rate import progress_of, schedule


def test_schedule_rises_linearly_and_falls_as_a_cosine() -> None:
    assert schedule(0.0, 0.1, 0.2) == 0.0
    assert schedule(0.05, 0.1, 0.2) == pytest.approx(0.5)
    assert schedule(0.1, 0.1, 0.2) == pytest.approx(1.0)
    assert schedule(0.55, 0.1, 0.2) == pytest.approx(0.6)
    assert schedule(0.325, 0.1, 0.2) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert schedule(1.0, 0.1, 0.2) == pytest.approx(0.2)
    assert schedule(7.0, 0.1, 0.2) == pytest.approx(0.2), "past the end"


def test_schedule_without_and_with_nothing_but_warm_up() -> None:
    assert schedule(0.0, 0.0, 0.1) == 1.0
    assert schedule(0.5, 1.0, 0.1) == 0.5
    assert schedule(1.0, 1.0, 0.1) == 1.0


def test_linear_falls_in_a_line() -> None:
    places = (0.0, 0.05, 0.1, 0.325, 0.55, 1.0)
    seen = [schedule(at, 0.1, 0.2, "linear") for at in places]
    assert seen == pytest.approx([0.0, 0.5, 1.0, 0.8, 0.6, 0.2])


def test_warmup_stable_decay_stays_and_falls_as_one_less_the_root() -> None:
    places = (0.0, 0.05, 0.1, 0.4, 0.75, 0.8, 0.85, 0.9, 1.0, 2.0)
    seen = [schedule(at, 0.1, 0.2, "wsd", 0.25) for at in places]
    golden = [0.0, 0.5, 1.0, 1.0, 1.0, 0.6422291236, 0.4940355744, 0.3803226646, 0.2, 0.2]
    assert seen == pytest.approx(golden, abs=1e-9)


def test_warmup_stable_decay_at_its_bounds() -> None:
    assert [schedule(at, 0.0, 0.1, "wsd", 1.0) for at in (0.0, 0.25, 1.0)] == pytest.approx([1.0, 0.55, 0.1])
    assert [schedule(at, 0.0, 0.1, "wsd", 0.0) for at in (0.0, 0.99, 1.0)] == [1.0, 1.0, 0.1]
    assert schedule(0.9, 0.9, 0.1, "wsd", 0.5) == pytest.approx(1.0), "the warm-up is never cut"


def test_progress_by_both_clocks() -> None:
    assert progress_of(3, 15, 30, 10) == pytest.approx(0.35)
    assert progress_of(3, 999, None, 10) == pytest.approx(0.35)
    assert progress_of(12, 0, 30, 10) == 1.0
