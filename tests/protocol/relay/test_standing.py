"""Tests of which relays are avoided, and that no single peer decides it."""

from __future__ import annotations

import pytest

from peer.codes import Code
from peer.protocol.messages import PeerId
from peer.protocol.relay.standing import (
    AWAY_S,
    FAILURES,
    LEFT_S,
    MAX_KEPT,
    MAX_PEERS_KEPT,
    MAX_RELAYS_KNOWN,
    TOGETHER_S,
    WINDOW_S,
    RelayStanding,
)
from peer.protocol.relay.testimony import RelayFault

NOW = 1000.0
RELAY, OTHER = PeerId("relay"), PeerId("other relay")
ONE, TWO, THREE = PeerId("one"), PeerId("two"), PeerId("three")


def fault(why: str) -> RelayFault:
    return RelayFault(Code.BROKEN, why)


def test_one_failure_proves_nothing_and_two_in_a_row_are_enough() -> None:
    standing = RelayStanding()
    assert standing.failed(RELAY, ONE, fault("it stalled"), NOW, bulk=True) is None
    assert not standing.is_left(RELAY, NOW)
    assert standing.failed(RELAY, TWO, fault("it hung up"), NOW + 1, bulk=True) == fault(
        "2 of its circuits failed in 10 minutes, the last: it hung up"
    )
    assert standing.is_left(RELAY, NOW + LEFT_S)
    assert not standing.is_left(RELAY, NOW + 1 + LEFT_S)
    assert not standing.is_left(OTHER, NOW)


def test_it_is_told_once_that_a_relay_is_left() -> None:
    standing = RelayStanding()
    told = [standing.failed(RELAY, ONE, fault("it stalled"), NOW + number, bulk=True) for number in range(10)]
    assert [bool(why) for why in told] == [False, True] + [False] * 8


def test_failures_that_lie_far_apart_do_not_add_up() -> None:
    standing = RelayStanding()
    for number in range(5):
        assert standing.failed(RELAY, ONE, fault("it stalled"), NOW + number * (WINDOW_S + 1), bulk=True) is None


def test_with_one_peer_a_relay_may_fail_less_often_than_it_works() -> None:
    standing = RelayStanding()
    for number in range(5):
        standing.worked(RELAY, ONE, NOW + number, bulk=True)
    told = [standing.failed(RELAY, ONE, fault("it stalled"), NOW + 10 + number, bulk=True) for number in range(5)]
    assert [bool(why) for why in told] == [False] * 4 + [True]


def test_a_single_peer_that_answers_nobody_does_not_part_us_from_a_relay_that_works() -> None:
    standing = RelayStanding()
    for peer in (ONE, TWO):
        standing.worked(RELAY, peer, NOW, bulk=True)
    for number in range(100):
        assert standing.failed(RELAY, PeerId("liar"), fault("nobody came"), NOW + number, bulk=True) is None
    assert standing.failed(RELAY, THREE, fault("nobody came"), NOW + 100, bulk=True), (
        "it fails with as many as it works with"
    )


def test_a_punctual_liar_does_not_push_out_what_others_found() -> None:
    standing = RelayStanding()
    standing.worked(RELAY, ONE, NOW, bulk=True)
    standing.worked(RELAY, TWO, NOW, bulk=True)
    for number in range(10 * MAX_KEPT * MAX_PEERS_KEPT):
        assert standing.failed(RELAY, PeerId("liar"), fault("nobody came"), NOW + number / 100, bulk=True) is None


def test_a_relay_that_loses_only_what_is_large_is_left_however_many_small_calls_pass() -> None:
    standing = RelayStanding()
    for number in range(100):
        standing.worked(RELAY, PeerId(f"peer {number % 10}"), NOW + number, bulk=False)
    assert standing.failed(RELAY, ONE, fault("it stalled"), NOW + 100, bulk=True) is None
    for number in range(100):
        standing.worked(RELAY, PeerId(f"peer {number % 10}"), NOW + 200 + number, bulk=False)
    assert standing.failed(RELAY, TWO, fault("it stalled"), NOW + 300, bulk=True)


def test_a_few_peers_that_were_cut_off_do_not_cost_a_relay_over_which_others_answer() -> None:
    standing = RelayStanding()
    for number in range(10):
        standing.worked(RELAY, PeerId(f"peer {number}"), NOW, bulk=False)
    for number in range(9):
        assert (
            standing.failed(RELAY, PeerId(f"dead {number}"), fault("a call over it was lost"), NOW, bulk=False) is None
        )


def test_relays_that_are_left_are_used_when_nothing_else_remains() -> None:
    standing = RelayStanding()
    assert standing.order([RELAY, OTHER], NOW) == [RELAY, OTHER]
    for _ in range(FAILURES):
        standing.failed(RELAY, ONE, fault("it stalled"), NOW, bulk=True)
    assert standing.order([RELAY, OTHER], NOW) == [OTHER]
    for _ in range(FAILURES):
        standing.failed(OTHER, ONE, fault("it stalled"), NOW, bulk=True)
    assert standing.order([RELAY, OTHER], NOW) == [RELAY, OTHER]
    assert standing.order([], NOW) == []


def test_a_relay_that_comes_back_starts_anew() -> None:
    standing = RelayStanding()
    for _ in range(FAILURES):
        standing.failed(RELAY, ONE, fault("it stalled"), NOW, bulk=True)
    later = NOW + max(LEFT_S, WINDOW_S) + 1
    assert standing.failed(RELAY, ONE, fault("it stalled"), later, bulk=True) is None
    assert standing.failed(RELAY, ONE, fault("it stalled"), later + 1, bulk=True)


@pytest.mark.parametrize("failed", [True, False])
def test_what_is_remembered_is_bounded(failed: bool) -> None:
    standing = RelayStanding()
    for number in range(2 * MAX_RELAYS_KNOWN):
        standing.worked(PeerId(f"relay {number}"), ONE, NOW, bulk=True)
    for number in range(2 * MAX_PEERS_KEPT):
        for _ in range(2 * MAX_KEPT):
            if failed:
                standing.failed(RELAY, PeerId(f"peer {number}"), fault(""), NOW, bulk=True)
            else:
                standing.worked(RELAY, PeerId(f"peer {number}"), NOW, bulk=True)
    assert len(standing._records) <= MAX_RELAYS_KNOWN
    ends = standing._records[RELAY].bulk.of
    assert len(ends) <= MAX_PEERS_KEPT
    assert max(map(len, ends.values())) <= MAX_KEPT


def test_what_breaks_as_a_relay_is_gone_is_no_failure_of_it() -> None:
    standing = RelayStanding()
    standing.gone(RELAY, NOW)
    for at in (NOW - TOGETHER_S, NOW, NOW + AWAY_S - 1):
        for other in (ONE, TWO, THREE):
            assert standing.failed(RELAY, other, fault("it broke"), at, bulk=True) is None
            assert standing.failed(RELAY, other, fault("it broke"), at, bulk=False) is None
    assert not standing.is_left(RELAY, NOW + 1)
    assert standing.failed(RELAY, ONE, fault("it stalled"), NOW - TOGETHER_S - 1, bulk=True) is None
    assert standing.failed(RELAY, ONE, fault("it stalled"), NOW + AWAY_S, bulk=True), "before and after, it was there"


def test_a_relay_that_was_gone_often_may_not_lie_for_longer() -> None:
    standing, now = RelayStanding(), NOW
    for _ in range(4):
        standing.gone(RELAY, now)
        now += WINDOW_S / 6
    standing.gone(RELAY, now)
    assert standing.is_away(RELAY, now + AWAY_S)
    assert standing.failed(RELAY, ONE, fault("it stalled"), now + AWAY_S, bulk=True) is None
    assert standing.failed(RELAY, ONE, fault("it stalled"), now + AWAY_S + 1, bulk=True)


def test_a_relay_that_is_gone_is_put_aside_while_there_is_another() -> None:
    standing = RelayStanding()
    standing.gone(RELAY, NOW)
    assert standing.order([RELAY, OTHER], NOW) == [OTHER]
    assert standing.order([RELAY, OTHER], NOW + AWAY_S) == [RELAY, OTHER]
    assert standing.order([RELAY], NOW) == [RELAY]
    standing.gone(OTHER, NOW)
    assert standing.order([RELAY, OTHER], NOW) == [RELAY, OTHER]


def test_a_relay_that_plays_dead_over_and_over_is_soon_hardly_used() -> None:
    """The relay is used whenever it does not count as away, and disappears at once each time."""
    standing, now, times = RelayStanding(), NOW, 0
    while now < NOW + 4 * 3600:
        if not standing.is_away(RELAY, now):
            standing.gone(RELAY, now)
            standing.gone(RELAY, now + 0.1)  # the same disappearance, reported twice
            times += 1
        now += 1.0
    assert times <= 4 * 6 * 6, "six times in ten minutes"
    standing.gone(RELAY, now + 2 * WINDOW_S)
    assert not standing.is_away(RELAY, now + 2 * WINDOW_S + AWAY_S), "that is long ago"


def test_it_is_known_with_whom_a_transfer_broke_as_a_relay_was_gone() -> None:
    standing = RelayStanding()
    standing.gone(RELAY, NOW)
    standing.failed(RELAY, ONE, fault("it broke"), NOW - 1, bulk=True)
    standing.failed(RELAY, TWO, fault("it broke"), NOW - 1, bulk=False)
    standing.failed(OTHER, THREE, fault("it broke"), NOW - 1, bulk=True)
    assert standing.broke_by(ONE, NOW - 5) == RELAY
    assert standing.broke_by(ONE, NOW) is None, "that was before"
    assert standing.broke_by(TWO, NOW - 5) is None, "no transfer broke"
    assert standing.broke_by(THREE, NOW - 5) is None, "that relay was there"
    for number in range(3 * MAX_PEERS_KEPT):
        standing.failed(RELAY, PeerId(f"peer {number}"), fault("it broke"), NOW, bulk=True)
    assert standing.broke_by(ONE, NOW - 5) is None, "the latest are remembered"
