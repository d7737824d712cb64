"""Attendance from made-up journals: which peers count as live, what was due, and how long a recovery took."""

from __future__ import annotations

from typing import Any

from peer.lab.localswarm.attendance import attendance, recoveries
from peer.lab.localswarm.chaos import FaultRecord
from peer.lab.sim.faults import Fault
from peer.methods.topology import GROUP, PAIR
from peer.observe.events import Event, Leaving, RoundDue, RoundEnded, RoundMissed, TrainingBegan
from peer.protocol.schedule import RoundClock

CLOCK = RoundClock("seconds", 10.0)
START, WINDOW = 1000.0, 2.5


def ended(round_: int, outcome: Any = "exchanged", late: float = 1.0) -> list[tuple[float, Event]]:
    at = START + (round_ + 1) * 10.0
    end = RoundEnded(
        round=round_,
        fragment=0,
        outcome=outcome,
        partner="",
        reason="" if outcome == "exchanged" else "nobody",
        applied=0,
        dropped=0,
        upto=0,
        steps=0,
        bytes_sent=0,
        bytes_received=0,
        seconds=0.0,
    )
    return [(at, RoundDue(round=round_, fragment=0, deadline=at + WINDOW)), (at + late, end)]


def whole(rounds: int, but: dict[int, list[tuple[float, Event]]] | None = None) -> list[tuple[float, Event]]:
    """Return the journal of a peer that was live all the time and exchanged every round. `but`: round -> other
    events."""
    lines = [line for round_ in range(rounds) for line in (but or {}).get(round_, ended(round_))]
    return [(START, TrainingBegan(round=0)), *lines, (START + rounds * 10 + 9, Leaving(reason=""))]


def happened(fault: Fault) -> FaultRecord:
    assert fault.at is not None
    return FaultRecord(fault, START + fault.at, START + fault.at + fault.seconds)


def test_a_swarm_without_faults_takes_part_whole() -> None:
    seen = attendance([whole(5)] * 4, [], CLOCK, 5, PAIR)
    assert (seen.due, seen.exchanged, seen.live, seen.in_time) == (20, 20, 20, 20)
    odd = attendance([whole(5)] * 3, [], CLOCK, 5, PAIR)
    assert (odd.due, odd.live) == (10, 15)
    assert attendance([whole(5)] * 3, [], CLOCK, 5, GROUP).due == 15


def test_a_round_of_which_a_live_peer_says_nothing_is_due_all_the_same() -> None:
    silent = whole(5, {2: [], 3: []})
    seen = attendance([whole(5), silent], [], CLOCK, 5, PAIR)
    assert (seen.due, seen.exchanged, seen.in_time) == (10, 8, 8)
    assert seen.participation == 0.8


def test_a_round_given_up_in_time_is_closed_and_not_ended() -> None:
    at, missed = START + 30.0, RoundMissed(round=2, fragment=0, reason="no roster")
    due = ended(2)[0]
    gives_up = whole(5, {2: [due, (at + 2.0, missed)], 3: ended(3, "refused")})
    late = whole(5, {2: [due, (at + WINDOW + 1.5, missed)], 3: [ended(3)[0]]})
    seen = attendance([whole(5), gives_up, late], [], CLOCK, 5, GROUP)
    assert (seen.live, seen.in_time, seen.closed) == (15, 11, 13)
    assert seen.closed_in_time == 13 / 15


def test_one_that_leaves_after_its_exchange_was_live_in_that_round() -> None:
    alone = whole(3, {2: ended(2, "solo")})
    early = [*whole(2)[:-1], *ended(2), (START + 31.5, Leaving(reason="told to leave"))]
    seen = attendance([whole(3), alone, early], [], CLOCK, 3, PAIR)
    assert (seen.due, seen.exchanged) == (6, 6), "in round 2 the first two had one partner between them"
    killed = [FaultRecord(Fault("kill", 2, at=31.5), START + 31.5, START + 31.5)]
    assert attendance([whole(3), alone, early[:-1]], killed, CLOCK, 3, PAIR).exchanged == 6
    before = [FaultRecord(Fault("kill", 2, at=30.5), START + 30.5, START + 30.5)]
    assert attendance([whole(3), alone, whole(2)[:-1]], before, CLOCK, 3, PAIR).exchanged == 5


def test_the_stopped_and_cut_are_not_live_while_they_are() -> None:
    journals = [whole(5), whole(5), whole(5, {2: ended(2, "solo")}), whole(5, {2: []})]
    plan = [Fault("stall", 3, at=25.0, seconds=10.0), Fault("cut", 2, at=29.0, seconds=4.0, others=(0, 1, 3))]
    seen = attendance(journals, [happened(fault) for fault in plan], CLOCK, 5, PAIR)
    assert (seen.due, seen.exchanged, seen.live) == (18, 18, 18)
    missed = [FaultRecord(fault, START, START + 60, "it met nobody") for fault in plan]
    assert attendance(journals, missed, CLOCK, 5, PAIR).live == 20
    pair = [happened(Fault("sever", 2, at=29.0, seconds=4.0, others=(3,)))]
    assert attendance(journals, pair, CLOCK, 5, PAIR).live == 18, "both ends of one link"


def test_the_killed_are_live_again_from_the_round_they_join() -> None:
    killed = [(START, TrainingBegan(round=0)), *ended(0), (START + 38, TrainingBegan(round=4)), *ended(4)]
    seen = attendance([whole(5), killed], [happened(Fault("kill", 1, at=15.0))], CLOCK, 5, PAIR)
    assert (seen.live, seen.due) == (7, 4)


def test_whoever_pairs_with_one_that_is_not_live_makes_good_for_nobody() -> None:
    three = [whole(5), whole(5), whole(5, {0: []})]
    stalled = [happened(Fault("stall", 3, at=25.0, seconds=6.0))]
    seen = attendance([*three, whole(5)], stalled, CLOCK, 5, PAIR)
    assert (seen.due, seen.exchanged) == (18, 17)


def test_late_and_missed_rounds_do_not_end_in_time() -> None:
    spoilt = whole(5, {1: ended(1, late=4.0), 2: ended(2, "refused"), 3: ended(3, "solo", late=3.2)})
    seen = attendance([whole(5), spoilt], [], CLOCK, 5, PAIR)
    assert seen.in_time == 10 - 1 - 1, "a refusal is no outcome that counts"
    assert seen.exchanged == 8


def test_recovery_is_the_next_due_round_that_was_exchanged() -> None:
    journals = [whole(6), whole(6, {2: ended(2, "solo")}), whole(6, {r: ended(r, "solo") for r in range(2, 6)})]
    plan = [
        happened(Fault("kill_trainer", 1, at=29.0)),
        happened(Fault("cut", 0, at=30.5, seconds=2.0, others=(1,))),
        happened(Fault("kill_helper", 2, at=25.0)),
        FaultRecord(Fault("kill_trainer", 0, at=40.0), START + 40, START + 40, "it had no trainer"),
    ]
    rows = recoveries(journals, plan)
    assert [row["kind"] for row in rows] == ["kill_helper", "kill_trainer", "cut", "kill_trainer"]
    assert [row["recovered_s"] for row in rows] == [None, 12.0, 10.5, None]
    assert "its last was round 5, solo: nobody" in rows[0]["why"]
    assert "no trainer" in rows[3]["why"]
