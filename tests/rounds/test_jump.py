"""Clock in steps: the round to which a peer jumps, by the claims of others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from peer.observe import events
from peer.protocol.messages import MAX_ROUND, PeerId
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.claimed_round import AHEAD, SHORTEST_STEP_S
from peer.rounds.schedule import RoundSchedule
from peer.rounds.status import RoundStatus

STEPS, START = 10, 1000.0
HONEST = {PeerId(f"honest {number}"): 8 for number in range(4)}


class _View:
    def __init__(self, rounds: dict[PeerId, int]) -> None:
        self._rounds = rounds

    def claimed_rounds(self) -> dict[PeerId, int]:
        return self._rounds


class _At:
    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


def schedule(
    rounds: dict[PeerId, int], proven: Iterable[PeerId] = (), *, start: float = START, after_s: float = 1000.0
) -> tuple[RoundSchedule, list[events.Event]]:
    journal: list[events.Event] = []
    made = RoundSchedule(
        RoundClock("steps", STEPS, start=start),
        cast(Any, _At(START + after_s)),
        cast(Any, _View(rounds)),
        journal.append,
        RoundStatus(),
        proven,
    )
    return made, journal


def test_a_peer_that_fell_behind_jumps_to_the_swarm() -> None:
    times, journal = schedule(HONEST)
    assert times.jump(3) == 8
    assert [event.to_round for event in journal if isinstance(event, events.Skipped)] == [8]


def test_forty_records_of_a_far_round_do_not_move_a_peer_that_knows_its_swarm() -> None:
    liars = {PeerId(f"liar {number}"): MAX_ROUND for number in range(40)}
    times, journal = schedule(HONEST | liars, set(HONEST))
    assert times.jump(8) == 8
    assert times.first(8) == 8
    assert journal == []


def test_nobody_moves_a_newcomer_past_what_time_allows() -> None:
    times, _ = schedule({PeerId(f"liar {number}"): MAX_ROUND for number in range(40)}, after_s=8.0)
    assert times.jump(0) <= 8.0 / (STEPS * SHORTEST_STEP_S) + AHEAD
