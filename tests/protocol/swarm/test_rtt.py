"""Timeouts from measured round trips."""

from __future__ import annotations

import random

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.swarm.rtt import FIRST_S, LEAST_S, MAX_PEERS, MOST_S, RoundTrip, RoundTrips

A, B = PeerId("a"), PeerId("b")


def test_the_equations_of_rfc_6298() -> None:
    trip = RoundTrip()
    trip.observe(1.2)
    assert (trip.srtt_s, trip.rttvar_s) == (1.2, 0.6)
    assert trip.timeout_s == pytest.approx(1.2 + 4 * 0.6)
    trip.observe(2.0)
    assert trip.rttvar_s == pytest.approx(0.75 * 0.6 + 0.25 * 0.8)
    assert trip.srtt_s == pytest.approx(7 / 8 * 1.2 + 2.0 / 8)
    assert trip.timeout_s == pytest.approx(1.3 + 4 * 0.65)


def test_a_steady_fast_peer_gets_the_floor_and_a_slow_one_the_ceiling() -> None:
    trips = RoundTrips()
    for _ in range(50):
        trips.observe(A, 0.02)
        trips.observe(B, 30.0)
    assert trips.timeout(A) == LEAST_S
    assert trips.timeout(B) == MOST_S
    assert trips.srtt(A) == pytest.approx(0.02)


def test_who_was_given_up_gets_twice_as_long_until_it_answers() -> None:
    trips = RoundTrips()
    assert trips.timeout(A) == FIRST_S
    trips.timed_out(A, FIRST_S)
    assert trips.timeout(A) == 2 * FIRST_S
    trips.timed_out(A, 2 * FIRST_S)
    trips.timed_out(A, 4 * FIRST_S)
    assert trips.timeout(A) == MOST_S
    assert trips.timeout(B) == FIRST_S, "one that is dead says nothing of the others"
    trips.observe(A, 0.1)
    assert trips.timeout(A) == LEAST_S


def test_a_link_that_fills_up_is_followed_before_its_peers_look_dead() -> None:
    """Round trips grow from 50 ms to 4 s within a minute. After a few timeouts they are measured again, without more
    timeouts."""
    rng, trips, lost_late = random.Random(1), RoundTrips(), 0
    for call in range(300):
        took = min(4.0, 0.05 + call * 0.07) * rng.uniform(0.8, 1.2)
        if took > (timeout := trips.timeout(A)):
            trips.timed_out(A, timeout)
            lost_late += call >= 100
        else:
            trips.observe(A, took)
    assert lost_late == 0
    assert trips.timeout(A) >= 4.8


def test_a_slow_link_of_our_own_is_known_before_the_first_call_to_a_peer() -> None:
    trips = RoundTrips()
    for _ in range(20):
        trips.observe(A, 3.0)
    assert trips.timeout(B) >= 3.0


def test_memory_is_bounded_and_forgotten() -> None:
    trips = RoundTrips()
    for number in range(MAX_PEERS + 50):
        trips.observe(PeerId(f"p{number}"), 3.0)
    assert len(trips) == MAX_PEERS
    trips.forget()
    assert len(trips) == 0
    assert trips.timeout(A) == FIRST_S


@pytest.mark.parametrize("seed", range(20))
def test_always_between_floor_and_ceiling(seed: int) -> None:
    rng, trips = random.Random(seed), RoundTrips()
    for _ in range(200):
        peer, took = PeerId(rng.choice("abc")), rng.expovariate(0.5)
        if rng.random() < 0.3:
            trips.timed_out(peer, took)
        else:
            trips.observe(peer, took)
        assert LEAST_S <= trips.timeout(peer) <= MOST_S
