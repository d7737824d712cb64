"""Which peers were live when a round was due, counted from outside: from the journals and from the faults that were
injected. A peer is live in a round if it is not killed, stopped, cut off, paused or joining between the due moment and
the deadline. It may leave earlier if it has exchanged already, because its partner has then exchanged with a live peer.
Only for round clocks in seconds, where a round is due at the same moment for all peers."""

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
"""Seconds after the deadline within which a round still counts as ended in time. A peer without a partner searches
until the deadline and takes its solo step only then."""
NEVER = ("", math.inf)
CUTS = ("partition", "cut", "sever", "cut_one_way")
Timeline = Sequence[tuple[float, Event]]
"""One peer's journal: (seconds since the epoch, event)."""
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Attendance:
    """Counts of peer-rounds of a whole swarm."""

    due: int
    """Due peer-rounds: in a round with n live peers 2 * floor(n / 2) in pairs, n in groups."""
    exchanged: int
    live: int
    """Peer-rounds of live peers, including an odd peer without a partner."""
    in_time: int
    """Peer-rounds of `live` that ended as exchanged or solo by the deadline."""
    closed: int
    """Peer-rounds of `live` for which the journal has any end by the deadline, whatever the outcome."""

    @property
    def participation(self) -> float | None:
        """Exchanged peer-rounds divided by due ones. None: no peer-round was due."""
        return self.exchanged / self.due if self.due else None

    @property
    def ended_in_time(self) -> float | None:
        """Share of live peer-rounds that ended as exchanged or solo in time."""
        return self.in_time / self.live if self.live else None

    @property
    def closed_in_time(self) -> float | None:
        """Share of live peer-rounds that had any end in time. In a group, where not every round is exchanged, this
        share shows whether peers were held up."""
        return self.closed / self.live if self.live else None


def attendance(
    journals: Sequence[Timeline],
    fault_records: Sequence[FaultRecord],
    clock: RoundClock,
    total_rounds: int,
    topology: Topology,
) -> Attendance:
    """Count the attendance of a swarm. `clock`: a round clock in seconds; its start is found from the journals."""
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
            # with an odd number, one peer may have exchanged with a peer that does not count as live
            exchanged += min(done, most)
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
    """Return the clock with its start, derived from the deadlines of due rounds. (The latest start counts, because a
    round that passed while the peer was away is journaled with an earlier deadline.)"""
    window = pairing_window(clock.round_length)
    starts = [
        event.deadline - window - (clock.due_at(event.round) - clock.start)
        for journal in journals
        for _, event in journal
        if isinstance(event, RoundDue)
    ]
    return replace(clock, start=max(starts, default=0.0))


def _deadline(clock: RoundClock, round_: int) -> float:
    """Return the deadline of a round. Full schedule: the end of the search for a partner. Streaming: when the fragment
    is due again."""
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
    """Yield (first round, (begin, end)) for each period in which the peer trained."""
    kills = [
        h.began for h in fault_records if h.fault.kind == "kill" and h.fault.peer == number and not h.missed_reason
    ]
    ends = sorted([*kills, *(at for at, event in journal if isinstance(event, Leaving | Paused))])
    for at, event in journal:
        if isinstance(event, TrainingBegan | WentOn):
            yield event.round, (at, next((end for end in ends if end > at), math.inf))


def _away(number: int, fault_records: Sequence[FaultRecord]) -> Iterator[Span]:
    """Yield the periods in which the peer was stopped or cut off."""
    for one in fault_records:
        fault = one.fault
        if one.missed_reason:
            continue
        stopped = fault.kind in ("stall", "stall_trainer") and fault.peer == number
        if stopped or (fault.kind in CUTS and number in cut_off(one)):
            yield one.began, one.until


def cut_off(one: FaultRecord) -> tuple[int, ...]:
    """Return the peers that a link fault counts as cut off: both ends of a single link, otherwise the peer named in the
    fault, and in a partition also its `others`."""
    fault = one.fault
    return (fault.peer, *fault.others) if fault.kind == "partition" or len(fault.others) == 1 else (fault.peer,)


def _ended(journal: Timeline) -> dict[int, tuple[str, float]]:
    """Return round -> (outcome, time). The first end of a round counts, because a peer restarted from an older
    checkpoint may play a round again."""
    found: dict[int, tuple[str, float]] = {}
    for at, event in journal:
        if isinstance(event, RoundEnded):
            found.setdefault(event.round, (event.outcome, at))
    return found


def _closed(journal: Timeline) -> dict[int, float]:
    """Return round -> time of its first end in the journal, exchanged or not."""
    found: dict[int, float] = {}
    for at, event in journal:
        if isinstance(event, RoundEnded | RoundMissed):
            found.setdefault(event.round, at)
    return found


def recoveries(journals: Sequence[Timeline], fault_records: Sequence[FaultRecord]) -> list[dict[str, Any]]:
    """Return one row for each fault: the seconds until all affected peers had exchanged a round that became due after
    the fault began. None, with a reason: this never happened."""
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
