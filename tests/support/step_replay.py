"""Recomputes every outer step of a simulated swarm from the peer's work and the values that it received, and compares
the result bit by bit. Also compares the received values with the values that the others sent.

Received values are read where the peer's own parts pass them on (trainer, swap, group). A value that is corrupted after
that point shows in the step, one that is corrupted before shows in the comparison with its sender."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from blake3 import blake3

from peer.codec.stream import Flat
from peer.exchange.group.member import GroupMean, GroupMember
from peer.exchange.group.strategy import GroupStrategy
from peer.exchange.pair.clipping import distance, shorten
from peer.exchange.pair.strategy import PairStrategy
from peer.exchange.pair.swap import PartnerTerms
from peer.exchange.payloads import work_of
from peer.lab.sim.machine import Life, SimulatedPeer
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient, OwnWork, PartnerParams
from peer.ports.trainer import WorkRequest, WorkSnapshot
from peer.protocol.messages import PeerId, RoundKey

Place = tuple[int, int]
"""(round, fragment)."""
CODED = {"fp32": 0.0, "fp16": 2**-10, "bf16": 2**-7, "modulo7": 2**-6}
"""Largest change of a value by a codec, relative to the largest value of the payload. Other codecs: one whole step of 4
bits."""
CODED_ELSE = 0.15
SENT = 16
"""Rounds for which sent values are remembered."""
SHARE = 2e-3
"""Precision of the counted share of work, which is computed from integers in the journal."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """A swap that one side considered complete."""

    partner: PeerId
    theirs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Shared:
    """A group round as one member saw it."""

    gradient: torch.Tensor
    base: bytes
    tokens: int
    got: GroupMean
    mean: torch.Tensor
    """A copy, because the step overwrites the original."""


@dataclass(repr=False)
class Values:
    """Watches a swarm. `found`: violations, as sentences."""

    swarm: SimulatedSwarm
    found: list[str] = field(default_factory=list)
    shared: dict[Place, dict[PeerId, Shared]] = field(default_factory=dict)
    """Values that members of groups received."""
    _works: dict[tuple[int, Place], WorkSnapshot] = field(default_factory=dict)
    _sent: dict[Place, dict[PeerId, list[torch.Tensor]]] = field(default_factory=dict)
    """Sent values of the last `SENT` rounds. A peer that received an older one has received something else."""
    _swapped: dict[tuple[int, Place], Swapped] = field(default_factory=dict)
    _judged: dict[tuple[int, Place], events.PartnerJudged] = field(default_factory=dict)
    _held: dict[int, OuterState] = field(default_factory=dict)
    """Copies of the peers' states after their last event."""
    _known: set[bytes] = field(default_factory=set)
    """Digests of all states that any fragment ever had: of its params, and of params with momentum."""
    _refounded: bool = False
    """The operator has replaced the state, which may then be any."""
    _lives: dict[int, Life] = field(default_factory=dict)
    """The watched lives, by peer number."""

    def __post_init__(self) -> None:
        first = OuterState.fresh(self.swarm.layout, self.swarm.first.clone())
        self._learn(first)
        for peer in self.swarm.peers:
            self._watch_trainer(peer)

    # -- where values are handed over --------------------------------------------------------------------------------

    def _watch_trainer(self, peer: SimulatedPeer) -> None:
        ask = peer.trainer.work

        async def work(request: WorkRequest) -> WorkSnapshot:
            done = await ask(request)
            kept = replace(done, params=done.params.clone())  # the trainer reuses the slot afterwards
            self._works[peer.number, (done.key.round, done.key.fragment)] = kept
            self._forget(peer, (done.key.round - SENT, done.key.fragment))
            return done

        peer.trainer.work = work  # type: ignore[method-assign]

    def _watch_life(self, peer: SimulatedPeer) -> None:
        life = peer.life
        if life.parts is None or self._lives.get(peer.number) is life:
            return
        self._lives[peer.number] = life
        topology = life.parts.strategy
        if isinstance(topology, PairStrategy):
            self._watch_swaps(peer, topology.swaps)
        if isinstance(topology, GroupStrategy):
            self._watch_group(peer, topology.group)

    def _watch_swaps(self, peer: SimulatedPeer, swaps: Any) -> None:
        ask = swaps.swap

        async def swap(terms: PartnerTerms, own: Flat, outer: torch.Tensor, into: torch.Tensor) -> Any:
            place = terms.key.round, terms.key.fragment
            self._remember_sent(peer.peer_id, place, own)
            report = await ask(terms, own, outer, into)
            self._swapped[peer.number, place] = Swapped(terms.partner.peer_id, into.clone())
            return report

        swaps.swap = swap

    def _forget(self, peer: SimulatedPeer, place: Place) -> None:
        self._works.pop((peer.number, place), None)
        self._swapped.pop((peer.number, place), None)
        self._judged.pop((peer.number, place), None)

    def _remember_sent(self, sender: PeerId, place: Place, own: Flat) -> None:
        if place not in self._sent:
            for old in [old for old in self._sent if old[0] < place[0] - SENT]:
                del self._sent[old]
        self._sent.setdefault(place, {}).setdefault(sender, []).append(own[0 : own.numel()].clone())

    def _watch_group(self, peer: SimulatedPeer, group: GroupMember) -> None:
        ask = group.exchange

        async def exchange(key: RoundKey, gradient: Flat, base: bytes, tokens: int, *others: Any) -> GroupMean:
            got = await ask(key, gradient, base, tokens, *others)
            shared = Shared(gradient[0 : gradient.numel()].clone(), base, tokens, got, got.mean.clone())
            self.shared.setdefault((key.round, key.fragment), {})[peer.peer_id] = shared
            return got

        group.exchange = exchange  # type: ignore[method-assign,assignment]

    # -- what became of them -----------------------------------------------------------------------------------------

    def heard(self, peer: SimulatedPeer, event: events.Event) -> None:
        """Handle an event of a peer. A step and its journal line happen together. At other events a step may be in
        progress, so the state is compared only at these."""
        self._refounded |= isinstance(event, events.Refounded)
        self._watch_life(peer)
        if isinstance(event, events.PartnerJudged):
            self._judged[peer.number, (event.round, event.fragment)] = event
        if peer.life.outer is None:
            return
        begins = isinstance(event, events.Started | events.TrainingBegan | events.Refounded)
        if begins or peer.number not in self._held:
            self._begins(peer, event)
        elif isinstance(event, events.RoundEnded | events.Evaluated | events.CaughtUp):
            self._moved(peer, event)

    def _begins(self, peer: SimulatedPeer, event: events.Event) -> None:
        """Check that a state from a checkpoint or a donor was held by a peer before. Only the operator may introduce a
        new one."""
        if not isinstance(event, events.Refounded) and not self._refounded:
            for fragment in range(len(peer.layout.fragments)):
                if _params_digest(peer.outer, fragment) not in self._known:
                    self._tell(peer, f"began with fragment {fragment} in a state that nobody had")
        self._keep(peer)

    def _moved(self, peer: SimulatedPeer, event: events.Event) -> None:
        before, after = self._held[peer.number], peer.outer
        for fragment in range(len(peer.layout.fragments)):
            stepped = isinstance(event, events.RoundEnded) and event.fragment == fragment
            if stepped:
                assert isinstance(event, events.RoundEnded)
                self._stepped(peer, event, before, after)
            elif before.digest(fragment) != after.digest(fragment) and not self._followed(
                event, after.digest(fragment)
            ):
                self._tell(peer, f"moved fragment {fragment} without a journaled step")
        self._keep(peer)

    def _followed(self, event: events.Event, now: bytes) -> bool:
        """Check a change of state outside a round: a group member caught up with the others, and journaled it."""
        said = isinstance(event, events.CaughtUp) and event.digest == now.hex()
        return said and now in self._known

    def _stepped(self, peer: SimulatedPeer, event: events.RoundEnded, before: OuterState, after: OuterState) -> None:
        what, fragment = f"round {event.round} fragment {event.fragment} ({event.outcome})", event.fragment
        if self.swarm.method.topology != "group":
            if not self._near(self._pair(peer, event, before), after, fragment, event):
                self._tell(peer, f"{what} gave a third value")
            return
        if event.digest != after.digest(fragment).hex():
            self._tell(peer, f"{what} is not what its digest says")
        if event.outcome == "exchanged":
            if self._group(peer, event, before).digest(fragment) != after.digest(fragment):
                self._tell(peer, f"{what} gave a third value")
        elif before.digest(fragment) != after.digest(fragment) and after.digest(fragment) not in self._known:
            self._tell(peer, f"{what} put a state in place that nobody had")

    def _pair(self, peer: SimulatedPeer, event: events.RoundEnded, before: OuterState) -> OuterState:
        """Return the expected state after a pair's step, computed on a copy of the state before."""
        place = event.round, event.fragment
        own, made = self._works[peer.number, place].params.clone(), _copy(before)
        if event.dropped:
            share = event.applied / (event.applied + event.dropped)
            own.sub_(before.fragment(event.fragment)).mul_(share).add_(before.fragment(event.fragment))
        theirs = None
        if event.outcome == "exchanged":
            swapped = self._swapped[peer.number, place]
            assert swapped.partner == event.partner, (swapped.partner, event.partner)
            theirs = swapped.theirs.clone()
            if not any(self._decoded(sent, theirs) for sent in self._sent.get(place, {}).get(swapped.partner, ())):
                self._tell(peer, f"round {event.round}: what it took of {event.partner} is not what that one sent")
            self._clip(peer, place, own, before, theirs)
        work = OwnWork(own, 1.0)
        made.step_with(event.fragment, work if theirs is None else PartnerParams(work, theirs), self.swarm.method)
        return made

    def _clip(
        self, peer: SimulatedPeer, place: Place, own: torch.Tensor, before: OuterState, theirs: torch.Tensor
    ) -> None:
        """Clip the partner's values as journaled, and check that the journal is right about it."""
        method, judged, outer = self.swarm.method, self._judged.get((peer.number, place)), before.fragment(place[1])
        if judged is None:
            if method.acceptance != "finite":
                self._tell(peer, f"round {place[0]}: it took its partner's params without a judgement")
            return
        sent = work_of(own, outer, method.sent_lr)
        params, their_outer = theirs[: outer.numel()], theirs[outer.numel() :]
        if not math.isclose(distance(params, sent), judged.distance, rel_tol=SHARE, abs_tol=SHARE):
            self._tell(peer, f"round {place[0]}: its partner was {distance(params, sent)} away, not {judged.distance}")
        shorten(params, sent, min(1.0, judged.radius / judged.distance) if judged.distance else 1.0)
        if their_outer.numel() and (away := distance(their_outer, outer)):
            shorten(their_outer, outer, min(1.0, judged.radius / away))

    def _decoded(self, sent: torch.Tensor, theirs: torch.Tensor) -> bool:
        off = (sent - theirs).abs().max()
        return bool(off <= CODED.get(self.swarm.method.codec, CODED_ELSE) * sent.abs().max())

    def _near(self, made: OuterState, after: OuterState, fragment: int, event: events.RoundEnded) -> bool:
        """Compare two states: bit by bit, except when a share of the work was dropped, which the journal gives in
        integers only."""
        if not event.dropped:
            return made.digest(fragment) == after.digest(fragment)
        moved = (made.fragment(fragment) - after.fragment(fragment)).abs().max()
        return bool(moved <= SHARE * max(1.0, float(after.fragment(fragment).abs().max())))

    def _group(self, peer: SimulatedPeer, event: events.RoundEnded, before: OuterState) -> OuterState:
        method, made = self.swarm.method, _copy(before)
        shared = self.shared[event.round, event.fragment][peer.peer_id]
        if shared.base != before.digest(event.fragment):
            self._tell(peer, f"round {event.round} took a step from another state than it said it built on")
        made.step_with(event.fragment, MeanGradient(shared.mean.clone(), shared.got.spans), method)
        return made

    # -- small things ------------------------------------------------------------------------------------------------

    def _keep(self, peer: SimulatedPeer) -> None:
        self._held[peer.number] = _copy(peer.outer)
        self._learn(peer.outer)

    def _learn(self, outer: OuterState) -> None:
        for fragment in range(len(outer.layout.fragments)):
            self._known |= {outer.digest(fragment), _params_digest(outer, fragment)}

    def _tell(self, peer: SimulatedPeer, what: str) -> None:
        self.found.append(f"1 no third value: {peer.peer_id} {what}")


def _copy(outer: OuterState) -> OuterState:
    return OuterState(outer.layout, outer.params.clone(), outer.momentum.clone())


def _params_digest(outer: OuterState, fragment: int) -> bytes:
    return blake3(outer.fragment(fragment).numpy().tobytes()).digest()


def covers(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether one of the spans contains this one."""
    return any(left <= start and end <= right for left, right in spans)
