from __future__ import annotations

import pytest

from peer.protocol.messages import MAX_ROUND, PeerId
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.claimed_round import AHEAD, SHORTEST_STEP_S, claimed_round, furthest_round


def named(*rounds: int) -> dict[PeerId, int]:
    return {PeerId(f"peer {number}"): round_ for number, round_ in enumerate(rounds)}


HONEST = {PeerId(f"honest {number}"): 50 + number for number in range(5)}
LIARS = {PeerId(f"liar {number}"): MAX_ROUND for number in range(40)}


def test_nobody_names_a_round() -> None:
    assert claimed_round({}) is None
    assert claimed_round({}, own=7) == 7


@pytest.mark.parametrize("most", [0, 3, 51])
def test_no_round_is_beyond_what_time_allows(most: int) -> None:
    assert claimed_round(HONEST | LIARS, most=most) == most
    assert claimed_round(HONEST, most=most) == min(52, most)


def test_the_word_of_three_proven_peers_outweighs_any_number_of_strangers() -> None:
    assert claimed_round(HONEST | LIARS) == MAX_ROUND
    assert claimed_round(HONEST | LIARS, set(HONEST)) == 52
    assert claimed_round(HONEST | LIARS, list(HONEST)[:3], own=49) == 50
    assert claimed_round(HONEST | dict.fromkeys(LIARS, 0), set(HONEST)) == 52


@pytest.mark.parametrize("proven", [1, 2])
def test_one_or_two_proven_peers_do_not_decide_alone(proven: int) -> None:
    rounds = HONEST | {PeerId("honest 0"): MAX_ROUND, PeerId("honest 1"): MAX_ROUND}
    assert claimed_round(rounds, list(rounds)[:proven]) == 54


def test_two_alone_meet_in_the_earlier_round() -> None:
    assert claimed_round(named(9), own=5) == 5
    assert claimed_round(named(5), own=9) == 5


def test_in_seconds_nobody_is_past_the_round_after_the_one_under_way() -> None:
    clock = RoundClock("seconds", 10.0, start=100.0)
    assert furthest_round(clock, 99.0) == AHEAD
    assert [furthest_round(clock, now) for now in (100.0, 109.9, 110.0, 1100.0)] == [1, 1, 2, 101]
    grown = RoundClock("seconds", 10.0, start=100.0, growth=((2, 5),))
    assert furthest_round(grown, 100.0 + 20.0 + 50.0) == 3 + AHEAD


def test_in_steps_nobody_is_past_what_the_fastest_machine_would_have_done() -> None:
    clock = RoundClock("steps", 100, fragments=2, start=1000.0)
    assert furthest_round(clock, 1000.0) == AHEAD
    assert furthest_round(clock, 1000.01 + 10 * 100 * SHORTEST_STEP_S) == 20 + AHEAD


@pytest.mark.parametrize("kind", ["seconds", "steps"])
def test_without_a_start_time_allows_anything(kind: str) -> None:
    assert furthest_round(RoundClock("seconds" if kind == "seconds" else "steps", 10.0), 1e9) is None
