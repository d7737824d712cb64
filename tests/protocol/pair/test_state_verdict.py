"""Whether a state that donors gave may be begun with."""

from __future__ import annotations

import math

import pytest

from peer.protocol.pair.state_verdict import (
    EARLY_ROUNDS,
    LEAST_WINDOWS,
    MOST_RMS,
    UNTRAINED,
    StateLosses,
    clearly_better,
    why_doubted,
    why_impossible,
    why_too_large,
)

GUESS = math.log(256)
LATE = EARLY_ROUNDS + 1


def losses(mean: float, spread: float = 0.1, count: int = 8) -> StateLosses:
    return StateLosses(tuple(mean + spread * (-1) ** n for n in range(count)), GUESS)


def test_a_trained_state_is_good_and_an_untrained_one_is_in_early_rounds() -> None:
    assert why_doubted(losses(2.0), LATE) == ""
    assert why_doubted(losses(GUESS + UNTRAINED / 2), EARLY_ROUNDS) == ""
    assert "no better than a guess" in why_doubted(losses(GUESS), LATE)
    assert why_impossible(losses(GUESS)) == ""


def test_more_than_an_untrained_model_is_impossible_but_for_the_windows_own_spread() -> None:
    assert "untrained" in why_impossible(losses(GUESS + 1.1 * UNTRAINED))
    assert why_impossible(losses(GUESS + 1.1 * UNTRAINED, spread=2.0)) == ""


@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_impossible(wild: float) -> None:
    found = StateLosses((*losses(2.0).windows, wild), GUESS)
    assert "not finite" in why_impossible(found)
    assert clearly_better(losses(9.0, count=9), found)
    assert not clearly_better(found, losses(9.0, count=9))


def test_few_windows_say_nothing() -> None:
    assert why_doubted(losses(99.0, count=LEAST_WINDOWS - 1), LATE) == ""


def test_better_is_what_chance_does_not_explain() -> None:
    assert clearly_better(losses(2.0), losses(2.1))
    assert not clearly_better(losses(2.1), losses(2.0))
    assert not clearly_better(losses(2.0), losses(2.0))
    noisy = StateLosses((2.0, 3.0, 1.0, 2.5), GUESS)
    assert not clearly_better(noisy, StateLosses((3.1, 1.0, 2.9, 1.9), GUESS))


def test_values_of_absurd_size_are_no_state() -> None:
    assert why_too_large(0.02) == ""
    assert why_too_large(1.01 * MOST_RMS)
    assert why_too_large(math.inf)
    assert why_too_large(math.nan)
