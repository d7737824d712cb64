"""An address whose connection has ended is dialled at once after a restart, and ever more rarely if the node closes
connections."""

from __future__ import annotations

from peer.discovery.dht_node.reaching import LEFT_ALONE_S, AskedFirst
from peer.discovery.dht_node.redial import LONGEST_S, Redial

FIRST_S, ADDRESS = 4.0, "/ip4/192.0.2.7/tcp/1/p2p/12D3Koo"


def test_one_that_never_answered_is_always_due() -> None:
    assert Redial(FIRST_S).is_due(ADDRESS, 0.0)


def test_one_whose_connection_lasted_is_due_at_once() -> None:
    redial = Redial(FIRST_S)
    for now in (0.0, 1000.0, 2000.0):
        redial.answered(ADDRESS, now)
        assert redial.is_due(ADDRESS, now + FIRST_S)


def test_one_that_ends_each_connection_is_dialled_a_hundred_times_a_day_at_most() -> None:
    redial, now, dialled = Redial(FIRST_S), 0.0, 0
    while now < 86_400.0:
        if redial.is_due(ADDRESS, now):
            redial.answered(ADDRESS, now)
            dialled += 1
        now += FIRST_S
    assert 86_400.0 / LONGEST_S <= dialled <= 110


def test_a_node_of_the_operator_that_fails_is_left_alone_for_a_while() -> None:
    now = 0.0
    first = AskedFirst(lambda: now)
    first.failed("one")
    assert first.of(["one", "other"]) == ["other"]
    now = LEFT_ALONE_S
    assert first.of(["one", "other"]) == ["one", "other"]
