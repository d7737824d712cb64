"""Strangers can waste only a small part of the trainer's time, whatever they do."""

from __future__ import annotations

import random

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.pair.stranger_budget import (
    KEPT_S,
    LEAST_CALLS,
    LEAST_S,
    MOST_CALLS,
    MOST_S,
    RESERVE_S,
    SHARE,
    StrangerBudget,
)

FRIEND, STRANGER = PeerId("friend"), PeerId("stranger")


def test_a_flood_of_strangers_costs_no_more_than_the_share() -> None:
    rng, patience, now, cost = random.Random(7), StrangerBudget(10.0), 1000.0, 0.0
    for k in range(20_000):
        now += rng.uniform(0.0, 2.0)
        allowed = patience.max_wait(PeerId(f"key {k}"), now)
        assert allowed is not None
        now += allowed
        cost += allowed
        patience.charge(allowed, now)
    assert 0.8 * SHARE * (now - 1000.0) < cost <= SHARE * (now - 1000.0) + MOST_S


def test_where_calls_are_slow_a_stranger_has_time_to_begin_and_the_share_is_the_same() -> None:
    rng, now, cost, call_s = random.Random(7), 1000.0, 0.0, 0.0
    patience = StrangerBudget(10.0, lambda: call_s)
    assert patience.max_wait(STRANGER, now) == MOST_S
    call_s = 2.0
    assert patience.max_wait(STRANGER, now) == MOST_CALLS * call_s
    for k in range(20_000):
        now += rng.uniform(0.0, 2.0)
        call_s = rng.uniform(0.0, 4.0)
        allowed = patience.max_wait(PeerId(f"key {k}"), now)
        assert allowed is not None
        assert allowed == 0.0 or allowed >= LEAST_CALLS * call_s
        now += allowed
        cost += allowed
        patience.charge(allowed, now)
    assert 0.5 * SHARE * (now - 1000.0) < cost <= SHARE * (now - 1000.0) + MOST_S + RESERVE_S


def test_who_says_that_its_step_is_under_way_is_waited_for_and_the_share_is_the_same() -> None:
    rng, now, cost, patience = random.Random(8), 1000.0, 0.0, StrangerBudget(10.0)
    assert patience.max_wait(STRANGER, now, 8.0) == MOST_S + 8.0
    assert patience.max_wait(STRANGER, now, MOST_S + RESERVE_S) == 0.0, "not even begun: it would be given up before"
    for k in range(20_000):
        now += rng.uniform(0.0, 2.0)
        late_s = rng.uniform(0.0, 20.0)
        allowed = patience.max_wait(PeerId(f"key {k}"), now, late_s)
        assert allowed is not None
        assert allowed == 0.0 or late_s + LEAST_S <= allowed <= late_s + MOST_S
        now += allowed
        cost += allowed
        patience.charge(allowed, now)
    assert 0.5 * SHARE * (now - 1000.0) < cost <= SHARE * (now - 1000.0) + MOST_S + RESERVE_S


def test_who_only_promises_is_not_tried_while_the_usual_allowance_is_used_up() -> None:
    patience = StrangerBudget(10.0)
    patience.charge(MOST_S, 0.0)
    assert patience.max_wait(STRANGER, 0.9 * LEAST_S / SHARE, 8.0) == 0.0
    assert patience.max_wait(STRANGER, 1.1 * LEAST_S / SHARE, 8.0) == pytest.approx(1.1 * LEAST_S + 8.0)


def test_when_calls_are_fast_again_the_allowance_is_the_usual_one() -> None:
    call_s = 4.0
    patience = StrangerBudget(10.0, lambda: call_s)
    patience.charge(MOST_S + RESERVE_S, 0.0)
    assert patience.max_wait(STRANGER, LEAST_S / SHARE) == 0.0, "a line as slow as that needs more"
    call_s = 0.01
    assert patience.max_wait(STRANGER, 0.0) == 0.0
    assert patience.max_wait(STRANGER, 1.1 * LEAST_S / SHARE) == pytest.approx(1.1 * LEAST_S)
    assert patience.max_wait(STRANGER, 1e9) == MOST_S


def test_a_stranger_is_tried_again_when_the_allowance_has_refilled() -> None:
    patience = StrangerBudget(10.0)
    assert patience.max_wait(STRANGER, 0.0) == MOST_S
    patience.charge(MOST_S, 0.0)
    assert patience.max_wait(STRANGER, 0.9 * LEAST_S / SHARE) == 0.0
    again = patience.max_wait(STRANGER, 1.1 * LEAST_S / SHARE)
    assert again is not None
    assert LEAST_S <= again < MOST_S


def test_who_exchanged_well_is_waited_for_until_it_offends() -> None:
    patience = StrangerBudget(10.0)
    patience.mark_known(FRIEND)
    patience.charge(100.0, 0.0)
    assert patience.max_wait(FRIEND, 0.0) is None
    patience.offended(FRIEND)
    assert patience.max_wait(FRIEND, 0.0) == 0.0


def test_long_rounds_allow_more_and_rounds_in_steps_do_not_count() -> None:
    assert StrangerBudget(600.0).max_wait(STRANGER, 0.0) == SHARE * 600
    assert StrangerBudget(None).max_wait(STRANGER, 0.0) is None


def test_silent_strangers_leave_a_part_to_those_who_answer() -> None:
    budget, now = StrangerBudget(10.0), 0.0
    assert budget.waits_for_silent(0.5, now)
    for _ in range(100):
        budget.charge_silence(0.5, now)
    assert budget.with_strangers(now) == pytest.approx(KEPT_S)
    assert not budget.waits_for_silent(0.5, now + 0.4 / SHARE)
    assert budget.waits_for_silent(0.5, now + 0.6 / SHARE)
    assert StrangerBudget(None).waits_for_silent(0.5, now)
