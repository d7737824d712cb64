"""Tests of the verdict on the losses of a probe, and of when a partner becomes a last choice."""

import math
import random

import pytest

from peer.protocol.pair.probe_verdict import FIRST_ROUNDS, MOST_ROUNDS, LastChoices, ProbeLosses, judge

GUESS = math.log(256)


def losses(mixed: float, *, base: float = 2.1, noise: float = 0.01, partner: float = 2.0, n: int = 16) -> ProbeLosses:
    rng = random.Random(3)
    hard = [rng.gauss(0, 0.5) for _ in range(n)]

    def around(mean: float) -> tuple[float, ...]:
        return tuple(mean + window + rng.gauss(0, noise) for window in hard)

    return ProbeLosses(around(base), around(2.0), around(mixed), around(partner), GUESS)


def test_a_mean_that_loses_less_than_half_of_the_gain_is_taken() -> None:
    verdict = judge(losses(2.03))
    assert verdict is not None
    assert verdict.accepted
    assert verdict.gained == pytest.approx(0.1, abs=0.02)
    assert verdict.lost == pytest.approx(0.03, abs=0.02)


def test_a_mean_that_undoes_our_work_is_refused_with_a_reason() -> None:
    verdict = judge(losses(2.2))
    assert verdict is not None
    assert not verdict.accepted
    assert "nats a token worse" in verdict.reason
    assert not verdict.nonsense


def test_noise_alone_refuses_nobody() -> None:
    """Our work has gained nothing, so only a loss beyond the standard error of the windows counts."""
    verdict = judge(losses(2.05, base=2.0, noise=0.2))
    assert verdict is not None
    assert verdict.accepted


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_a_mean_without_a_loss_is_refused(worst: float) -> None:
    given = losses(2.0)
    verdict = judge(ProbeLosses(given.base, given.own, (worst,) * 16, (worst,) * 16, GUESS))
    assert verdict is not None
    assert not verdict.accepted
    assert verdict.nonsense


def test_too_few_windows_and_losses_that_are_none_say_nothing() -> None:
    assert judge(losses(9.0, n=3)) is None
    given = losses(9.0)
    assert judge(ProbeLosses((math.nan,) * 16, given.own, given.mixed, given.partner, GUESS)) is None


def test_only_params_that_are_worse_than_guessing_are_nonsense() -> None:
    for partner, nonsense in ((GUESS - 0.1, False), (GUESS + 1.0, True)):
        verdict = judge(losses(2.2, partner=partner))
        assert verdict is not None
        assert verdict.nonsense is nonsense


def test_honest_partner_with_other_data_is_not_called_nonsense() -> None:
    """Early in a run, replicas trained on disjoint data are worse than a guess on the data of all, ours as well as
    theirs."""
    taken = judge(losses(2.0, partner=GUESS + 1.0))
    assert taken is not None
    assert not taken.nonsense
    hard = losses(2.2, partner=GUESS + 1.0)
    own = tuple(loss + GUESS for loss in hard.own)
    worse = judge(ProbeLosses(own, own, tuple(loss + 1 for loss in own), hard.partner, GUESS))
    assert worse is not None
    assert not worse.accepted
    assert not worse.nonsense


def test_refused_twice_running_is_the_last_choice_for_longer_and_longer() -> None:
    choices, round_, lengths = LastChoices(), 0, []
    for _ in range(6):
        choices.refused("liar", round_)
        assert "liar" not in choices.in_round(round_ + 1)
        choices.refused("liar", round_ + 1)
        begun = round_ = round_ + 2
        while "liar" in choices.in_round(round_):
            round_ += 1
        lengths.append(round_ - begun)
    assert lengths == [8, 16, 32, 64, 64, 64]
    assert (lengths[0], lengths[-1]) == (FIRST_ROUNDS, MOST_ROUNDS)


def test_one_that_was_taken_again_begins_anew() -> None:
    choices = LastChoices()
    choices.refused("unlucky", 1)
    choices.accepted("unlucky")
    choices.refused("unlucky", 2)
    assert "unlucky" not in choices.in_round(3)


def test_memory_of_refusals_is_bounded() -> None:
    choices = LastChoices()
    for number in range(2000):
        for _ in range(2):
            choices.refused(f"key {number}", 1)
    assert len(choices.in_round(2)) == 512
