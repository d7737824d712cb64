from __future__ import annotations

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.policy.reputation import CEILING, HALF_LIFE_S, OUT_OF_FAVOUR, WRONG_BYTES, ReputationScore, weight

ONE, TWO = PeerId("one"), PeerId("two")


def test_a_crash_is_no_crime_but_who_is_lost_again_and_again_is_not_waited_for() -> None:
    standing = ReputationScore()
    for number in range(4):
        standing.offend(ONE, "lost", 20.0 * number)
        assert standing.out_for_s(ONE, 20.0 * number) == 0
    for number in range(4, 7):
        standing.offend(ONE, "lost", 20.0 * number)
    assert 0 < standing.out_for_s(ONE, 120.0) < 300
    once_an_hour = ReputationScore()
    for number in range(100):
        assert once_an_hour.offend(ONE, "lost", 3600.0 * number) < 1.01


@pytest.mark.parametrize("code", ["checksum", "digest", "length", "not_finite", "norm", "a code of tomorrow"])
def test_wrong_bytes_put_a_peer_out_at_once_and_nobody_else(code: str) -> None:
    standing = ReputationScore()
    assert standing.offend(ONE, code, 0.0) == WRONG_BYTES
    assert standing.out_for_s(ONE, 0.0) > 60
    assert standing.out_for_s(TWO, 0.0) == 0


def test_standing_comes_back_after_the_time_that_was_named() -> None:
    standing = ReputationScore()
    standing.offend(ONE, "checksum", 100.0)
    left = standing.out_for_s(ONE, 100.0)
    assert standing.out_for_s(ONE, 100.0 + left / 2) == pytest.approx(left / 2)
    assert standing.out_for_s(ONE, 100.0 + left - 1) > 0
    assert standing.out_for_s(ONE, 100.0 + left + 1) == 0
    assert standing.score(ONE, 100.0 + HALF_LIFE_S) == pytest.approx(WRONG_BYTES / 2)


def test_being_late_needs_repeating_and_repeating_slowly_costs_nothing() -> None:
    quick, slow = ReputationScore(), ReputationScore()
    for number in range(6):
        quick.offend(ONE, "late", 10.0 * number)
        slow.offend(ONE, "late", 400.0 * number)
        assert slow.out_for_s(ONE, 400.0 * number) == 0
    assert quick.out_for_s(ONE, 60.0) > 300
    assert 2 * weight("late") <= OUT_OF_FAVOUR, "twice is forgiven"


def test_stopping_in_the_middle_costs_a_minute_and_then_more() -> None:
    standing = ReputationScore()
    standing.offend(ONE, "silent", 0.0)
    assert 0 < standing.out_for_s(ONE, 0.0) < 60
    standing.offend(ONE, "silent", 60.0)
    assert standing.out_for_s(ONE, 60.0) > 240


def test_a_second_offence_lasts_longer_but_nothing_lasts_for_ever() -> None:
    standing = ReputationScore()
    standing.offend(ONE, "digest", 0.0)
    first = standing.out_for_s(ONE, 0.0)
    standing.offend(ONE, "digest", 0.0)
    assert standing.out_for_s(ONE, 0.0) > first
    for _ in range(1000):
        standing.offend(ONE, "digest", 0.0)
    assert standing.score(ONE, 0.0) == CEILING
    assert standing.out_for_s(ONE, 0.0) <= 20 * 60


def test_a_clock_set_back_makes_nothing_grow() -> None:
    standing = ReputationScore()
    standing.offend(ONE, "digest", 1000.0)
    assert standing.score(ONE, 0.0) == WRONG_BYTES


def test_a_flood_of_keys_pushes_out_small_offences_and_keeps_the_table_bounded() -> None:
    standing = ReputationScore(limit=100)
    for _ in range(3):
        standing.offend(ONE, "digest", 0.0)
    for number in range(1000):
        standing.offend(PeerId(f"flood-{number}"), "layout", 1.0)
    assert len(standing) == 100
    assert standing.out_for_s(ONE, 1.0) > 0


def test_who_is_out_is_listed_with_the_longest_first() -> None:
    standing = ReputationScore()
    standing.offend(ONE, "digest", 0.0)
    standing.offend(TWO, "digest", 0.0)
    standing.offend(TWO, "digest", 0.0)
    standing.offend(PeerId("three"), "late", 0.0)
    assert list(standing.out_of_favour(1.0)) == [TWO, ONE]
