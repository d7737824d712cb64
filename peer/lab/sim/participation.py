"""Due, missed and exchanged peer-rounds of a simulated swarm. Counted from outside, from the known lives of the peers,
not from the rounds that the peers themselves report as due.

With n live peers a pair round has 2 * floor(n / 2) due peer-rounds, any other round n. A peer is live in a round if it
trains and is not killed, stopped or cut off between the due moment and the deadline, which is the end of the pairing
window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH
from peer.observe import events
from peer.protocol.schedule import pairing_window

AWAY = ("stall", "partition", "cut", "cut_one_way")

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Participation:
    """Counts of peer-rounds, of live peers only."""

    live: int
    due: int
    exchanged: int
    missed: int
    """Peer-rounds without an outcome by the deadline."""

    @property
    def share(self) -> float:
        """Exchanged peer-rounds divided by due ones. 1 if no peer-round was due."""
        return self.exchanged / self.due if self.due else 1.0


def participation_of(swarm: SimulatedSwarm) -> Participation | None:
    """Count the participation of a swarm whose run is over. None with a round clock in steps, because a round is then
    due at a different time for each peer."""
    if swarm.rounds.kind != "seconds":
        return None
    count, window = swarm.total_rounds, pairing_window(swarm.rounds.round_length)
    live, exchanged, missed = [0] * count, [0] * count, 0
    away = _away(swarm)
    for peer in swarm.peers:
        ended = {e.round: (at, e.outcome) for at, e in _outcomes(peer)}
        for round_ in _rounds_lived(peer, swarm, window, away.get(peer.number, [])):
            at, outcome = ended.get(round_, (math.inf, ""))
            in_time = at <= swarm.rounds.due_at(round_) - EPOCH + window
            live[round_] += 1
            exchanged[round_] += in_time and outcome == "exchanged"
            missed += not in_time
    due = [*map(swarm.method.topology_spec.due, live)]
    return Participation(sum(live), sum(due), sum(map(min, exchanged, due)), missed)


def _outcomes(peer: SimulatedPeer) -> Iterator[tuple[float, events.RoundEnded]]:
    pairs = zip(peer.times, peer.events, strict=True)
    return ((at, event) for at, event in pairs if isinstance(event, events.RoundEnded))


def _away(swarm: SimulatedSwarm) -> dict[int, list[Span]]:
    """Return for each peer number the (begin, end) spans, in loop time, in which it was stopped or cut off from another
    peer."""
    spans: dict[int, list[Span]] = {}
    for at, fault in swarm.fault_injector.injected:
        for number in (fault.peer, *fault.others) if fault.kind in AWAY else ():
            spans.setdefault(number, []).append((at, at + fault.seconds))
    return spans


def _lives(peer: SimulatedPeer) -> Iterator[tuple[int, Span]]:
    """Yield (first round, (begin of training, kill)) for each life that began to train. Times in loop time; infinite:
    not killed."""
    journal = zip(peer.times, peer.events, strict=True)
    begins = [(at, event.round) for at, event in journal if isinstance(event, events.TrainingBegan)]
    for life in peer.lives:
        end = life.killed_at if life.killed else math.inf
        for at, round_ in begins:
            if life.began_at <= at <= end:
                yield round_, (at, end)
                break


def _rounds_lived(peer: SimulatedPeer, swarm: SimulatedSwarm, window: float, away: list[Span]) -> Iterator[int]:
    """Yield the rounds in which the peer was live."""
    for first, (began, end) in _lives(peer):
        for round_ in range(first, swarm.total_rounds):
            due = swarm.rounds.due_at(round_) - EPOCH
            if end <= due + window:
                break
            if began <= due and not any(left <= due + window and due <= right for left, right in away):
                yield round_
