"""A whole swarm in virtual time: the production coordinator on the in-memory network, directory and trainer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import torch

from peer.daemon.amendments import Amendments
from peer.daemon.coordinator import Coordinator
from peer.daemon.donor import Donor
from peer.daemon.plan import Plan
from peer.daemon.reach import Reach
from peer.daemon.view import RECORD_TTL_S, View
from peer.identity import Identity
from peer.observe.events import Event, RoundEnded
from peer.observe.totals import Ledger, Totals, fold, ledger
from peer.outer.state import OuterState
from peer.protocol.layout import Layout, TensorSpec
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId
from peer.protocol.roundclock import RoundClock
from peer.run.amendments import Chain
from peer.run.presets import Method
from peer.testing.clock import VirtualClock, inline
from peer.testing.directory import MemoryDirectory, MemoryDirectoryHub
from peer.testing.network import MemoryTransport, Network
from peer.testing.trainer import FakeTrainer

RUN = RunId(b"simulated run ".ljust(32, b"."))
OPERATOR = Identity.generate()
LAYOUT = Layout.whole([TensorSpec("w", (16,))])


@dataclass
class SimulatedPeer:
    """One peer of a simulation and everything it journaled."""

    peer_id: PeerId
    coordinator: Coordinator
    transport: MemoryTransport
    trainer: FakeTrainer
    view: View
    reach: Reach
    amendments: Amendments
    outer: OuterState
    events: list[Event] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def outcomes(self) -> Counter[str]:
        return Counter(event.outcome for event in self.events if isinstance(event, RoundEnded))

    def partners(self) -> dict[int, str]:
        """Round to partner, of the exchanged rounds."""
        ended = [event for event in self.events if isinstance(event, RoundEnded)]
        return {event.round: event.partner for event in ended if event.outcome == "exchanged"}

    def ledger(self) -> Ledger:
        totals = Totals()
        for event in self.events:
            totals = fold(totals, event, 0.0)
        counters = self.trainer.counters()
        return ledger(totals, counters.tokens, counters.base, self.coordinator.elements)


class SimulatedSwarm:
    """`count` peers on one network. Build it inside the virtual loop."""

    def __init__(
        self,
        count: int,
        *,
        method: Method,
        rounds: RoundClock,
        total_rounds: int,
        seed: int,
        step_seconds: dict[int, float] | float = 0.1,
        missing_views: float = 0.0,
        only_dial_out: Container[int] = (),
    ) -> None:
        """`only_dial_out`: numbers of the peers nobody can open a connection to."""
        self.network = Network(dialable=lambda peer: int(peer.rpartition("-")[2]) not in only_dial_out)
        self.states: dict[bytes, torch.Tensor] = {}
        """What a node of the operator serves, by digest."""
        self.hub = MemoryDirectoryHub(VirtualClock().now)
        self._method, self._rounds, self._total = method, rounds, total_rounds
        self.hub.hide = self._views_missing(missing_views, seed)
        self.peers = [self._peer(number, step_seconds, seed) for number in range(count)]

    def _views_missing(self, part: float, seed: int) -> Callable[[PeerId, PeerId], bool]:
        """Every peer misses each of the others with this probability, drawn anew every round's length."""
        length = self._rounds.round_length

        def hide(reader: PeerId, other: PeerId) -> bool:
            era = int(asyncio.get_running_loop().time() / length)
            return random.Random(f"{seed}/{era}/{reader}/{other}").random() < part

        return hide

    def _peer(self, number: int, step_seconds: dict[int, float] | float, seed: int) -> SimulatedPeer:
        me, clock = _name(number), VirtualClock()
        seconds = step_seconds if isinstance(step_seconds, float) else step_seconds[number]
        trainer = FakeTrainer(LAYOUT, clock, step_seconds=seconds, seed=seed * 1000 + number)
        directory = MemoryDirectory(self.hub, me, RUN)
        donor, journal = Donor(), list[Event]()
        chain, in_steps = Chain(RUN, OPERATOR.peer_id), self._rounds.kind == "steps"
        amendments = donor.amendments = Amendments(chain, None, journal.append, in_steps=in_steps)
        transport = MemoryTransport(self.network, me, donor, clock)
        outer = OuterState.fresh(LAYOUT, torch.zeros(LAYOUT.elements))
        made: list[Coordinator] = []
        rng = random.Random(seed * 1000 + number)
        endpoints = (f"memory:{number}",)
        reach = Reach(transport, clock, rng, lambda: endpoints)

        def describe() -> PeerRecord:
            live, now = made[0].live, clock.now()
            return PeerRecord(
                me,
                RUN,
                endpoints,
                reach.reachable,
                WIRE_VERSION,
                WIRE_VERSION,
                live.round,
                1.0,
                live.status,
                now,
                now + RECORD_TTL_S,
                made[0].run_start,
            )

        view = View(directory, clock, rng, describe)
        plan = Plan(RUN, me, self._method, self._total, eval_every=10, min_peers=1)
        coordinator = Coordinator(
            plan,
            clock,
            transport,
            trainer,
            view,
            outer,
            journal.append,
            inline,
            self._rounds,
            ruling=amendments.ruling,
            fetch_founded=self._fetch_founded,
        )
        view.banned = lambda peer: peer in amendments.ruling(coordinator.live.round).banned
        made.append(coordinator)
        donor.matchmaker = coordinator.matchmaker
        return SimulatedPeer(me, coordinator, transport, trainer, view, reach, amendments, outer, journal)

    async def _fetch_founded(self, digest: bytes) -> torch.Tensor | None:
        return self.states.get(digest)

    async def run(self) -> None:
        """All peers, from start to end."""
        async with asyncio.TaskGroup() as group:
            for peer in self.peers:
                peer.task = group.create_task(self._play(peer))

    async def _play(self, peer: SimulatedPeer) -> None:
        await peer.view.announce()
        await peer.view.look()
        await peer.trainer.start(peer.outer.params, 0, None)
        background = {asyncio.create_task(peer.view.run()), asyncio.create_task(peer.reach.run(peer.view.known))}
        asking = peer.amendments.run(peer.transport, VirtualClock(), random.Random(peer.peer_id), peer.view.known)
        background.add(asyncio.create_task(asking))
        try:
            await peer.coordinator.run(0)
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)


def _name(number: int) -> PeerId:
    return PeerId(f"sim-{number:03d}")
