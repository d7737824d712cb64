"""Diagnosis of slow peers and links on synthetic exchanges with a known cause."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from peer.protocol.diagnosis.analysis import MOST_LAG_S, Diagnosis, believed, lag_by_own_doing
from peer.protocol.diagnosis.outliers import LEAST, WINDOW, YOU, OutlierFinding, Sample, spread
from peer.protocol.messages import PeerId, PeerTimings

RATE = 600_000.0
NBYTES = 4_000_000
PARTNERS = [PeerId(f"peer-{number:06d}") for number in range(7)]

Factor = Callable[[PeerId], float]


def even(partner: PeerId) -> float:
    return 1.0


def only(culprit: PeerId, factor: float) -> Factor:
    return lambda partner: factor if partner == culprit else 1.0


def met(
    count: int = 56,
    *,
    out: Factor = even,
    into: Factor = even,
    told_out: Factor = even,
    told_in: Factor = even,
    lag_s: Callable[[PeerId], float] = lambda partner: 0.0,
    noise: float = 0.2,
    nbytes: int = NBYTES,
    seed: int = 0,
    diagnosis: Diagnosis | None = None,
) -> Diagnosis:
    """Return a diagnosis after this many exchanges with the partners in turn, whose rates are scaled by these
    factors."""
    rng, diagnosis = random.Random(seed), diagnosis or Diagnosis()

    def drawn(factor: float) -> float:
        return RATE * factor * rng.lognormvariate(0.0, noise)

    for number in range(count):
        partner = PARTNERS[number % len(PARTNERS)]
        sample = Sample(partner, nbytes, drawn(out(partner)), drawn(into(partner)), lag_s(partner))
        diagnosis.add(sample, PeerTimings(1.0, 1.0, RATE * told_out(partner), RATE * told_in(partner)))
        diagnosis.look()
    return diagnosis


def keys(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [finding.key for finding in diagnosis.found()]


def test_a_healthy_peer_finds_nothing_and_says_of_how_many() -> None:
    diagnosis = met()
    assert keys(diagnosis) == []
    assert diagnosis.no_finding_reason() == "nothing unusual in the last 56 exchanges"


@pytest.mark.nightly
def test_false_alarms_are_rare_under_strong_noise() -> None:
    """The promise is less than 1 % of verdicts."""
    lags = random.Random(5)
    alarms = sum(bool(met(noise=0.4, seed=seed, lag_s=lambda _: lags.gauss(0.0, 2.0)).found()) for seed in range(200))
    assert alarms < 2, alarms


def test_our_own_uplink_is_named_with_both_numbers() -> None:
    [finding] = met(out=lambda partner: 0.15).found()
    assert finding.key == ("slow_uplink", YOU)
    assert finding.number == pytest.approx(0.15 * RATE * 8e-6, rel=0.15)
    assert finding.unit == "Mbit/s"
    assert "the same partners get 4.8 in the median" in finding.why


def test_our_own_downlink() -> None:
    assert keys(met(into=lambda partner: 0.2)) == [("slow_downlink", YOU)]


def test_a_slow_partner_is_named_when_its_own_numbers_say_so_too() -> None:
    culprit = PARTNERS[2]
    assert keys(met(into=only(culprit, 0.2), told_out=only(culprit, 0.2))) == [("slow_uplink", culprit)]
    assert keys(met(out=only(culprit, 0.2), told_in=only(culprit, 0.2))) == [("slow_downlink", culprit)]


def test_a_slow_link_is_told_from_a_slow_partner() -> None:
    [finding] = met(out=only(PARTNERS[3], 0.2)).found()
    assert finding.key == ("slow_link", PARTNERS[3])
    assert finding.number == pytest.approx(5.0, rel=0.3)


def test_words_alone_blame_nobody() -> None:
    """One partner claims slow transfers, but the measured ones are normal."""
    assert keys(met(told_out=only(PARTNERS[1], 0.1), told_in=only(PARTNERS[1], 0.1))) == []


def test_a_liar_makes_nobody_else_slow() -> None:
    boast = only(PARTNERS[1], 1e4)
    assert all(who == PARTNERS[1] for _, who in keys(met(told_out=boast, told_in=boast)))


def test_half_as_fast_is_slow_and_a_little_slower_is_not() -> None:
    assert keys(met(out=lambda partner: 0.6, noise=0.05)) == []
    assert keys(met(out=lambda partner: 0.45, noise=0.05)) == [("slow_uplink", YOU)]


def test_where_partners_differ_much_by_themselves_more_is_needed() -> None:
    homes = {partner: 2.0 ** (number - 3) for number, partner in enumerate(PARTNERS)}
    mixed = homes.__getitem__
    assert keys(met(out=lambda partner: 0.3 * mixed(partner), told_in=mixed, told_out=mixed, into=mixed)) == []


def test_a_slow_transfer_that_is_over_at_once_is_nothing() -> None:
    assert keys(met(out=lambda partner: 0.15, nbytes=10_000)) == []


def test_too_few_exchanges_or_partners_say_so() -> None:
    diagnosis = met(3, out=lambda partner: 0.1)
    assert keys(diagnosis) == []
    assert diagnosis.no_finding_reason() == f"not enough exchanges yet (3 of {LEAST})"
    alone = Diagnosis()
    for _ in range(20):
        alone.add(Sample(PARTNERS[0], NBYTES, RATE / 9, RATE), PeerTimings(1.0, 1.0, RATE, RATE))
        assert alone.look() == ([], [])
    assert alone.no_finding_reason() == "not enough partners to compare with (1 of 3)"


def test_a_finding_comes_once_stays_and_goes_once() -> None:
    diagnosis = met()
    news = list[OutlierFinding]()
    ends = list[OutlierFinding]()

    def go_on(count: int, factor: float) -> None:
        for number in range(count):
            sample = Sample(PARTNERS[number % 7], NBYTES, RATE * factor, RATE)
            diagnosis.add(sample, PeerTimings(1.0, 1.0, RATE, RATE))
            new, over = diagnosis.look()
            news.extend(new)
            ends.extend(over)

    go_on(WINDOW, 0.4)
    assert [finding.key for finding in news] == [("slow_uplink", YOU)]
    go_on(WINDOW, 0.55)  # slightly within the bounds: the finding stays, by hysteresis
    assert (len(news), ends) == (1, [])
    go_on(WINDOW, 1.0)
    assert [finding.key for finding in ends] == [("slow_uplink", YOU)]
    assert len(news) == 1


def test_one_look_is_no_finding() -> None:
    diagnosis = Diagnosis()
    for number in range(LEAST):
        diagnosis.add(Sample(PARTNERS[number % 7], NBYTES, RATE / 9, RATE), PeerTimings(1.0, 1.0, RATE, RATE))
    assert diagnosis.look() == ([], [])
    assert [finding.key for finding in diagnosis.look()[0]] == [("slow_uplink", YOU)]


def test_our_trainer_or_a_partners() -> None:
    [finding] = met(lag_s=lambda partner: -12.0).found()
    assert finding.key == ("late_trainer", YOU)
    assert "ready 12 s after your partners, in 16 of the last 16 rounds" in finding.why
    assert keys(met(lag_s=lambda partner: 12.0 if partner == PARTNERS[4] else 0.0)) == [("late_trainer", PARTNERS[4])]


@pytest.mark.parametrize(("failure", "what"), [("late", "never_ready"), ("silent", "stalled")])
def test_a_partner_that_stands_still(failure: str, what: str) -> None:
    diagnosis = met(21)
    for _ in range(3):
        diagnosis.add(Sample(PARTNERS[5], failure=failure))  # type: ignore[arg-type]
        diagnosis.look()
    assert keys(diagnosis) == []  # three of six exchanges are too few
    for _ in range(8):
        diagnosis.add(Sample(PARTNERS[5], failure=failure))  # type: ignore[arg-type]
        diagnosis.look()
    assert keys(diagnosis) == [(what, PARTNERS[5])]


def test_who_stands_still_with_everybody_is_to_blame_itself() -> None:
    diagnosis = Diagnosis()
    for number in range(16):
        diagnosis.add(Sample(PARTNERS[number % 7], failure="lost" if number % 2 else "late"))
        diagnosis.look()
    assert [who for _, who in keys(diagnosis)] == [YOU]


def test_who_began_late_is_not_to_blame_for_being_late() -> None:
    on_time = PeerTimings(ready=100.0, worked=20.0)
    assert lag_by_own_doing(on_time, PeerTimings(ready=112.0, worked=20.0)) == 0  # it began 12 s later
    assert lag_by_own_doing(on_time, PeerTimings(ready=112.0, worked=32.0)) == 12
    assert lag_by_own_doing(on_time, PeerTimings(ready=112.0, worked=25.0)) == 5
    assert lag_by_own_doing(PeerTimings(112.0, 32.0), on_time) == -12
    assert lag_by_own_doing(on_time, PeerTimings(ready=90.0, worked=32.0)) == 0


@pytest.mark.parametrize(
    "told",
    [
        PeerTimings(math.nan, 0.0),
        PeerTimings(100.0 + 2 * MOST_LAG_S, 0.0),
        PeerTimings(0.0, 0.0),
        PeerTimings(1e5, math.inf),
        PeerTimings(1e5, 0.0, math.nan),
        PeerTimings(1e5, 0.0, -1.0),
        PeerTimings(1e5, 0.0, 1.0, 1e300),
        PeerTimings(1e5, 0.0, 1e-300),
    ],
)
def test_what_cannot_be_is_not_believed(told: PeerTimings) -> None:
    assert believed(told, PeerTimings(1e5, 0.0)) is None


def test_what_can_be_is_believed_once_we_tell_too() -> None:
    told = PeerTimings(1e5 + 30, 20.0, 0.0, 5e6)
    assert believed(told, PeerTimings(1e5, 0.0)) == told
    assert believed(told, None) is None


def test_rates_are_told_from_five_on_and_are_medians() -> None:
    diagnosis = Diagnosis()
    for number in range(5):
        assert diagnosis.own_rates() == (0.0, 0.0)
        diagnosis.add(Sample(PARTNERS[0], NBYTES, float(number + 1), 10.0 * (number + 1)))
    assert diagnosis.own_rates() == (3.0, 30.0)


def test_spread_is_a_standard_deviation_that_outliers_do_not_move() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.0, 3.0) for _ in range(2000)]
    assert spread(values) == pytest.approx(3.0, rel=0.1)
    assert spread([*values, *[1e9] * 50]) == pytest.approx(3.0, rel=0.1)
    assert spread([]) == 0
