"""Tests of the judgement whether a machine fits a run, and whether a last inner step is begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.protocol.policy.fitness import GRACE, Load, of_link, of_steps, rounds_a_step
from peer.protocol.schedule import late_by, margin

PAIRS = Load(nbytes=24_000_000, round_s=60.0, again_s=60.0, waits=True, alone="solo")
STREAMED = Load(nbytes=24_000_000, round_s=60.0, again_s=240.0, waits=False, alone="solo")


def test_short_steps_end_at_the_boundary_nearest_to_the_moment() -> None:
    assert margin(0.2, 60.0, worked=True) == pytest.approx(0.1)
    assert margin(0.2, 60.0, worked=False) == pytest.approx(0.1)
    assert margin(74.0, None, worked=True) == 37.0


def test_a_long_step_is_not_begun_when_it_would_end_far_too_late() -> None:
    assert margin(20.0, 60.0, worked=True) == 20.0 - 60.0 * GRACE
    assert margin(74.0, 60.0, worked=True) > 60.0, "not even at the beginning of a round, for one who can exchange"


@pytest.mark.parametrize("step_s", [0.1, 1.0, 4.0, 8.0, 16.0, 59.0])
def test_no_step_ends_later_than_is_said(step_s: float) -> None:
    for k in range(100):
        now = -k / 100 * step_s - 2 * step_s  # relative to the due moment, 0
        while -now > margin(step_s, 60.0, worked=True):
            now += step_s
        assert now <= late_by(step_s, 60.0) <= late_by(0.0, 60.0) == 60.0 * GRACE


def test_who_has_nothing_begins_even_a_step_that_no_round_is_long_enough_for() -> None:
    assert margin(74.0, 60.0, worked=False) == 0.0


@pytest.mark.parametrize(("step_s", "rounds"), [(0.1, 1), (60.0, 1), (62.9, 1), (63.1, 2), (74.0, 2), (600.0, 10)])
def test_in_how_many_rounds_a_step_is_done(step_s: float, rounds: int) -> None:
    assert rounds_a_step(step_s, 60.0) == rounds


def test_slow_steps_are_told_with_their_numbers() -> None:
    assert of_steps(59.0, 60.0, 10) is None
    verdict = of_steps(74.0, 60.0, 10)
    assert verdict is not None
    assert verdict.found == (
        "one inner step takes 74 s here, a round is 60 s: this machine would sit out 1 of 2 rounds"
    )
    assert "smaller model" in verdict.fix
    assert not verdict.never


def test_a_step_longer_than_the_rest_of_the_run_is_never_of_use() -> None:
    verdict = of_steps(700.0, 60.0, 10)
    assert verdict is not None
    assert verdict.never
    assert "the run ends in 10 rounds" in verdict.found


def test_a_link_is_told_what_a_round_costs_it() -> None:
    assert of_link(PAIRS, 10e6, "upload, its cap") is None
    verdict = of_link(PAIRS, 125_000, "upload, its cap")
    assert verdict is not None
    assert verdict.found == (
        "a round's 24 MB take 192 s over 1 Mbit/s of upload, its cap, a round is 60 s: "
        "training would stand still and miss 4 of 5 rounds"
    )
    assert not verdict.never
    part = of_link(PAIRS, 1e6, "upload, its cap")
    assert part is not None
    assert "stand still 40 % of the time" in part.found


def test_a_link_over_which_no_exchange_ever_ends_in_time_is_refused() -> None:
    given_up = of_link(PAIRS, 50_000, "upload, its cap")
    assert given_up is not None
    assert given_up.never
    assert "you would end solo" in given_up.found
    assert of_link(STREAMED, 125_000, "upload, its cap") is None, "there are 240 s for it, and nobody waits"
    late = of_link(STREAMED, 99_000, "upload, its cap")
    assert late is not None
    assert late.never
    group = of_link(replace(STREAMED, alone="dropped"), 99_000, "upload, its cap")
    assert group is not None
    assert "would be dropped" in group.found


def test_who_sends_nothing_needs_no_link() -> None:
    assert of_link(replace(PAIRS, nbytes=0), 1.0, "upload, its cap") is None
