from __future__ import annotations

import itertools

import pytest

from peer.protocol.ledger import cut_work
from peer.protocol.schedule import RoundClock, lower_median, pairing_window


def test_rounds_in_seconds() -> None:
    clock = RoundClock("seconds", 10.0, start=100.0)
    assert clock.round_at(99.9) == -1
    assert clock.round_at(100.0) == 0
    assert clock.round_at(119.9) == 1
    assert clock.due_at(0) == 110.0
    assert clock.due_at(1) == 120.0


def test_with_fragments_a_round_is_a_part_of_sync_every_and_each_fragment_keeps_its_distance() -> None:
    clock = RoundClock("seconds", 12.0, fragments=3, start=0.0)
    assert clock.round_length == 4.0
    due = [clock.due_at(r) for r in range(9) if clock.fragment_due(r) == 1]
    assert [b - a for a, b in itertools.pairwise(due)] == [12.0, 12.0]


@pytest.mark.parametrize("joined", [100.0, 100.5, 104.0, 109.9, 110.0])
def test_a_joiner_has_worked_one_sync_every_before_its_first_round_is_due(joined: float) -> None:
    clock = RoundClock("seconds", 10.0, start=100.0)
    first = clock.first_round_for(joined)
    assert clock.due_at(first) - joined >= 10.0
    assert clock.due_at(first - 1) - joined < 10.0


def test_lower_median() -> None:
    assert lower_median([]) is None
    assert lower_median([5]) == 5
    assert lower_median([9, 1]) == 1
    assert lower_median([1, 9, 5]) == 5
    assert lower_median([1, 2, 3, 100]) == 2


def test_window() -> None:
    assert pairing_window(1.0) == 2.0
    assert pairing_window(300.0) == 75.0


def test_work_of_one_round_is_applied_whole() -> None:
    cut = cut_work(tokens=640, elements=7, steps=10, nominal_steps=10)
    assert (cut.share, cut.applied, cut.dropped) == (1.0, 4480, 0)


def test_piled_up_work_is_scaled_and_the_cut_share_is_dropped() -> None:
    cut = cut_work(tokens=1001, elements=3, steps=30, nominal_steps=10)
    assert cut.share == pytest.approx(1 / 3)
    assert cut.applied == 1001
    assert cut.applied + cut.dropped == 3003
