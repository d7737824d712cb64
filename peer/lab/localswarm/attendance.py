"""Who was there when a round was due, counted from outside: from the journals' lives and from what was done to the
peers. Live in a round: not killed, stopped, cut, paused or joining between its due moment and its deadline. After its
exchange a peer may go: its partner had an exchange with a live peer. A clock in seconds only: there every round has its
moment, whoever plays it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peer.lab.localswarm.chaos import FaultRecord
from peer.methods.topology import Topology
from peer.observe.events import Event, Leaving, Paused, RoundDue, RoundEnded, RoundMissed, TrainingBegan, WentOn
from peer.protocol.schedule import RoundClock, pairing_window

STEP_S = 1.0
"""A peer without a partner looks until the deadline, and only then steps alone: its round has ended in time when it
ends at most so much later."""
NEVER = ("", math.inf)
CUTS = ("partition", "cut", "sever", "cut_one_way")
Timeline = Sequence[tuple[float, Event]]
"""A peer's journal: (seconds since the epoch, event)."""
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Attendance:
    """Of a whole swarm."""

    due: int
    """Peer-rounds: in a round with n live peers 2 * floor(n / 2) for pairs, n for groups."""
    exchanged: int
    live: int
    """Peer-rounds of live peers, those included that have nobody to pair with."""
    in_time: int
    """Of these: ended as exchanged or solo by the deadline."""
    closed: int
    """Of these: brought to an end by the deadline, whatever it was, with a line in the journal that says so."""

    @property
    def participation(self) -> float | None:
        return self.exchanged / self.due if self.due else None

    @property
    def ended_in_time(self) -> float | None:
        return self.in_time / self.live if self.live else None

    @property
    def closed_in_time(self) -> float | None:
        """Where a group's rounds are not all exchanged, whether anybody was held up by it."""
        return self.closed / self.live if self.live else None


def attendance(
    journals: Sequence[Timeline],
    fault_records: Sequence[FaultRecord],
    clock: RoundClock,
    total_rounds: int,
    topology: Topology,
) -> Attendance:
    """`clock`: in seconds; its start is read off the journals."""
    clock = _with_start(clock, journals)
    live = [
        _live_rounds(number, journal, fault_records, clock, total_rounds) for number, journal in enumerate(journals)
    ]
    ended = [_ended(journal) for journal in journals]
    due = exchanged = 0
    for round_ in range(total_rounds):
        there = [number for number, rounds in enumerate(live) if round_ in rounds]
        if len(there) > 1:
            most = topology.due(len(there))
            done = sum(ended[number].get(round_, NEVER)[0] == "exchanged" for number in there)
            due += most
            exchanged += min(done, most)  # the odd one may have found somebody who does not count as live
    in_time = sum(
        (end := ended[number].get(round_, NEVER))[0] in ("exchanged", "solo")
        and end[1] <= _deadline(clock, round_) + STEP_S
        for number, rounds in enumerate(live)
        for round_ in rounds
    )
    ends = [_closed(journal) for journal in journals]
    closed = sum(
        ends[number].get(round_, math.inf) <= _deadline(clock, round_) + STEP_S
        for number, rounds in enumerate(live)
        for round_ in rounds
    )
    return Attendance(due, exchanged, sum(map(len, live)), in_time, closed)


def _with_start(clock: RoundClock, journals: Iterable[Timeline]) -> RoundClock:
    """Return the clock with its start. (A round that passed unplayed is journaled with an earlier deadline.)"""
    window = pairing_window(clock.round_length)
    starts = [
        event.deadline - window - (clock.due_at(event.round) - clock.start)
        for journal in journals
        for _, event in journal
        if isinstance(event, RoundDue)
    ]
    return replace(clock, start=max(starts, default=0.0))


def _deadline(clock: RoundClock, round_: int) -> float:
    """Full schedule: when looking for a partner ends. Streaming: when its fragment is due again."""
    due = clock.due_at(round_)
    return due + (
        pairing_window(clock.round_length) if clock.fragments == 1 else clock.worked(round_ + clock.fragments)
    )


def _live_rounds(
    number: int, journal: Timeline, fault_records: Sequence[FaultRecord], clock: RoundClock, total_rounds: int
) -> set[int]:
    gone, ended = list(_away(number, fault_records)), _ended(journal)
    window = pairing_window(clock.round_length)
    found = set()
    for first, (began, end) in _lives(number, journal, fault_records):
        for round_ in range(max(0, first), total_rounds):
            due, closes = clock.due_at(round_), clock.due_at(round_) + window
            outcome, at = ended.get(round_, NEVER)
            if outcome == "exchanged":
                closes = min(closes, at)
            whole = began <= due and closes <= end
            if whole and not any(start <= closes and due <= stop for start, stop in gone):
                found.add(round_)
    return found


def _lives(number: int, journal: Timeline, fault_records: Sequence[FaultRecord]) -> Iterator[tuple[int, Span]]:
    """(its first round, span) of each time it trained."""
    kills = [
        h.began for h in fault_records if h.fault.kind == "kill" and h.fault.peer == number and not h.missed_reason
    ]
    ends = sorted([*kills, *(at for at, event in journal if isinstance(event, Leaving | Paused))])
    for at, event in journal:
        if isinstance(event, TrainingBegan | WentOn):
            yield event.round, (at, next((end for end in ends if end > at), math.inf))


def _away(number: int, fault_records: Sequence[FaultRecord]) -> Iterator[Span]:
    """While it was stopped or cut."""
    for one in fault_records:
        fault = one.fault
        if one.missed_reason:
            continue
        stopped = fault.kind in ("stall", "stall_trainer") and fault.peer == number
        if stopped or (fault.kind in CUTS and number in cut_off(one)):
            yield one.began, one.until


def cut_off(one: FaultRecord) -> tuple[int, ...]:
    """Whom a bad link counts as cut: both ends of a single one, else the side that was named."""
    fault = one.fault
    return (fault.peer, *fault.others) if fault.kind == "partition" or len(fault.others) == 1 else (fault.peer,)


def _ended(journal: Timeline) -> dict[int, tuple[str, float]]:
    """Round: (outcome, when). The first word counts: from an older checkpoint a round may be played again."""
    found: dict[int, tuple[str, float]] = {}
    for at, event in journal:
        if isinstance(event, RoundEnded):
            found.setdefault(event.round, (event.outcome, at))
    return found


def _closed(journal: Timeline) -> dict[int, float]:
    """Round: when its first end was journaled."""
    found: dict[int, float] = {}
    for at, event in journal:
        if isinstance(event, RoundEnded | RoundMissed):
            found.setdefault(event.round, at)
    return found


def recoveries(journals: Sequence[Timeline], fault_records: Sequence[FaultRecord]) -> list[dict[str, Any]]:
    """For the report: each fault with the seconds until those it befell had ended a round as exchanged that was due
    after it began. None: never, with a reason."""
    return [_recovery(journals, one) for one in sorted(fault_records, key=lambda one: one.began)]


def _recovery(journals: Sequence[Timeline], one: FaultRecord) -> dict[str, Any]:
    fault = one.fault
    row = {"fault": repr(fault), "kind": fault.kind, "peer": fault.peer, "at_s": fault.at, "recovered_s": None}
    if one.missed_reason:
        return {**row, "why": f"it did not happen: {one.missed_reason}"}
    touched = cut_off(one) if fault.kind in CUTS else (fault.peer,)
    moments = [_next_exchange(journals[number], one.began) for number in touched]
    if None not in moments:
        return {**row, "recovered_s": round(max(at for at in moments if at is not None) - one.began, 1)}
    never = touched[moments.index(None)]
    return {**row, "why": f"peer {never} exchanged no round that was due later, {_last_round(journals[never])}"}


def _next_exchange(journal: Timeline, since: float) -> float | None:
    due: set[int] = set()
    for at, event in journal:
        if isinstance(event, RoundDue) and at >= since:
            due.add(event.round)
        if isinstance(event, RoundEnded) and event.outcome == "exchanged" and event.round in due:
            return at
    return None


def _last_round(journal: Timeline) -> str:
    ended = [event for _, event in journal if isinstance(event, RoundEnded)]
    if not ended:
        return "it ended no round at all"
    last = ended[-1]
    return f"its last was round {last.round}, {last.outcome}" + (f": {last.reason}" if last.reason else "")
