"""Strangers may cost the trainer a small part of the time, whatever they do."""

from __future__ import annotations

import random

from peer.protocol.messages import PeerId
from peer.protocol.patience import LEAST_S, MOST_S, SHARE, Patience

FRIEND, STRANGER = PeerId("friend"), PeerId("stranger")


def test_a_flood_of_strangers_costs_no_more_than_the_share() -> None:
    rng, patience, now, cost = random.Random(7), Patience(10.0), 1000.0, 0.0
    for k in range(20_000):
        now += rng.uniform(0.0, 2.0)
        allowed = patience.of(PeerId(f"key {k}"), now)
        assert allowed is not None
        now += allowed
        cost += allowed
        patience.spend(allowed, now)
    assert 0.8 * SHARE * (now - 1000.0) < cost <= SHARE * (now - 1000.0) + MOST_S


def test_a_stranger_is_tried_again_when_the_allowance_has_refilled() -> None:
    patience = Patience(10.0)
    assert patience.of(STRANGER, 0.0) == MOST_S
    patience.spend(MOST_S, 0.0)
    assert patience.of(STRANGER, 0.9 * LEAST_S / SHARE) == 0.0
    again = patience.of(STRANGER, 1.1 * LEAST_S / SHARE)
    assert again is not None
    assert LEAST_S <= again < MOST_S


def test_who_exchanged_well_is_waited_for_until_it_offends() -> None:
    patience = Patience(10.0)
    patience.well(FRIEND)
    patience.spend(100.0, 0.0)
    assert patience.of(FRIEND, 0.0) is None
    patience.offended(FRIEND)
    assert patience.of(FRIEND, 0.0) == 0.0


def test_long_rounds_allow_more_and_rounds_in_steps_do_not_count() -> None:
    assert Patience(600.0).of(STRANGER, 0.0) == SHARE * 600
    assert Patience(None).of(STRANGER, 0.0) is None
