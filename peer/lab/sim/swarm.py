"""A whole swarm in virtual time: the production coordinator, joining and amendments on the in-memory network, directory
and trainer. Build it inside the virtual loop (`peer.lab.sim.virtual_clock.run_virtual`), then `await
swarm.run(faults)`."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from collections.abc import Callable, Container, Iterable
from typing import cast

import torch

from peer.aio.threads import inline
from peer.exchange.pair.strategy import Pairs
from peer.identity import Identity
from peer.join.context import JoinContext
from peer.join.state import obtain_state
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.fault_injector import Mischief
from peer.lab.sim.faults import Fault
from peer.lab.sim.links import Link
from peer.lab.sim.machine import Life, SimulatedPeer
from peer.lab.sim.network import MemoryTransport, Network
from peer.lab.sim.suspend import waking_of
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import GATE, Gate, VirtualClock, nap
from peer.membership.amendment_sync import ASK_EVERY_S, AmendmentSync
from peer.membership.peer_table import PeerTable, lifetime, pace
from peer.membership.reachability import ReachabilityProbe
from peer.node.handler import DonatedState, RequestHandler, ServedParts
from peer.observe import events
from peer.outer.state import OuterState
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.buckets import SPLIT
from peer.protocol.swarm.reachability import SETTLED_EVERY_S
from peer.rounds.loop import RoundLoop
from peer.run.amendments import Chain
from peer.run.plan import RunPlan
from peer.run.presets import Method
from peer.state.checkpoint import CheckpointStore

RUN = RunId(b"simulated run ".ljust(32, b"."))
OPERATOR = Identity.generate()
LAYOUT = Layout.whole([TensorSpec("w", (16,))])
CHECKPOINT_EVERY_S = 60.0
ASKS_A_ROUND = 4
"""For amendments, in long rounds: they take effect rounds later."""
LOOK = SPLIT
"""Records in a look at the directory."""

MakeTrainer = Callable[[int, Layout, VirtualClock], VirtualTrainer]


def layout_of(method: Method, elements: int = 16) -> Layout:
    """A model of no meaning: a tensor of so many elements for each fragment of the method."""
    tensors = tuple(TensorSpec(f"w{number}", (elements,)) for number in range(method.fragments))
    return Layout(tensors, tuple((number, number + 1) for number in range(method.fragments)))


class PlainSeal:
    """Signs for peers that have no key: quick, and good enough where nobody forges."""

    def __init__(self, me: PeerId) -> None:
        self._me = me

    def sign(self, raw: bytes) -> bytes:
        return hashlib.blake2b(raw, key=self._me.encode()[:64], digest_size=64).digest()

    def verify(self, peer: PeerId, raw: bytes, signature: bytes) -> bool:
        return PlainSeal(peer).sign(raw) == signature


class SimulatedSwarm:
    """`count` peers on one network."""

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
        layout: Layout | None = None,
        links: dict[int, Link] | Link | None = None,
        look: int | None = LOOK,
        eval_every: int = 10,
        first: torch.Tensor | None = None,
        make_trainer: MakeTrainer | None = None,
        min_peers: int = 1,
        weight: float = 1.0,
        stops: bool = True,
    ) -> None:
        """`only_dial_out`: numbers of the peers nobody can open a connection to. `links`: of all peers, or by number.
        `look`: of pairs, see `MemoryDirectoryHub`; groups see everybody.
        `first`: outer_params all begin with (flat fp32; zeros). `make_trainer`: with number, layout and clock.
        `min_peers`: the first round waits until so many know of each other. `weight`: bytes on the wire that a byte of
        the layout stands for. `stops`: processes may be stopped; each then beats every second to notice it, which is
        most of what a quiet swarm costs."""
        self.network = Network(dialable=lambda peer: number_of(peer) not in only_dial_out, rng=random.Random(seed))
        self.network.link = links if isinstance(links, Link) else self.network.link
        self.network.weight, self._stops = weight, stops
        self._running = 0
        self._news = asyncio.Event()
        """A life has ended."""
        self._failed: list[asyncio.Task[None]] = []
        self.states: dict[bytes, torch.Tensor] = {}
        """What a node of the operator serves, by digest."""
        self.hub = MemoryDirectoryHub(VirtualClock().now, None if method.topology == "group" else look)
        self.layout = layout or layout_of(method)
        self.method, self.rounds, self.total_rounds = method, rounds, total_rounds
        self._seed, self._eval_every, self._min_peers = seed, eval_every, min_peers
        self._lifetime_s = lifetime(self._pace())
        self.first = torch.zeros(self.layout.elements) if first is None else first
        if missing_views > 0:
            self.hub.hide = self._views_missing(missing_views, seed)
        if make_trainer is None:
            make_trainer = self._fake_trainers(step_seconds)
        self.peers = [self._machine(number, make_trainer) for number in range(count)]
        if isinstance(links, dict):
            self.network.links |= {self.peers[number].peer_id: link for number, link in links.items()}
        for peer in self.peers:
            self._begin(peer)
        self.mischief = Mischief(self)

    def _fake_trainers(self, step_seconds: dict[int, float] | float) -> MakeTrainer:
        def make(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
            seconds = step_seconds if isinstance(step_seconds, float) else step_seconds[number]
            return FakeTrainer(layout, clock, step_seconds=seconds, seed=self._seed * 1000 + number)

        return make

    def _views_missing(self, part: float, seed: int) -> Callable[[PeerId, PeerId], bool]:
        """Every peer misses each of the others with this probability, drawn anew every round's length."""
        length, drawn = self.rounds.round_length, dict[PeerId, tuple[int, frozenset[PeerId]]]()

        def hide(reader: PeerId, other: PeerId) -> bool:
            era = int(asyncio.get_running_loop().time() / length)
            if drawn.get(reader, (-1,))[0] != era:
                rng = random.Random(f"{seed}/{era}/{reader}")
                drawn[reader] = era, frozenset(peer.peer_id for peer in self.peers if rng.random() < part)
            return other in drawn[reader][1]

        return hide

    # -- a machine and its lives -------------------------------------------------------------------------------------

    def _machine(self, number: int, make_trainer: MakeTrainer) -> SimulatedPeer:
        trainer = make_trainer(number, self.layout, VirtualClock())
        return SimulatedPeer(number, PeerId(f"sim-{number:03d}"), self.layout, trainer)

    def _begin(self, peer: SimulatedPeer) -> Life:
        """A new process on the machine: it answers, and has no state yet."""
        clock, donor = VirtualClock(), RequestHandler()
        rng = random.Random(self._seed * 1000 + peer.number + len(peer.lives) * 10**9)
        transport = MemoryTransport(self.network, peer.peer_id, donor, clock)
        gate = self.network.gates[peer.peer_id] = Gate()
        chain, in_steps = Chain(RUN, OPERATOR.peer_id), self.rounds.kind == "steps"
        endpoints = (f"memory:{peer.number}",)
        life = Life(
            gate,
            MemoryDirectory(self.hub, peer.peer_id, RUN),
            transport,
            donor,
            rng,
            ReachabilityProbe(transport, clock, rng, lambda: endpoints),
            AmendmentSync(chain, None, lambda event: _journal(peer, life, event), in_steps=in_steps),
        )
        donor.serve(ServedParts(amendments=life.amendments))
        life.began_at = asyncio.get_running_loop().time()
        peer.lives.append(life)
        self._running += 1
        return life

    def _coordinator(self, peer: SimulatedPeer, life: Life, outer: OuterState) -> RoundLoop:
        """Built as the daemon does around a state that is complete."""
        clock = VirtualClock()
        life.outer = outer
        view = life.view = PeerTable(
            life.directory,
            clock,
            life.rng,
            lambda: self._record(peer, life),
            look_every_s=self._pace(),
            peek=lambda: self._last_record(peer, life),
        )
        plan = RunPlan(
            RUN, peer.peer_id, self.method, self.total_rounds, eval_every=self._eval_every, min_peers=self._min_peers
        )

        async def keep(round_: int) -> None:
            if clock.now() >= peer.kept.due:
                peer.kept.due = clock.now() + CHECKPOINT_EVERY_S
                peer.kept.keep(outer, round_, peer.trainer.counters().tokens)

        coordinator = life.coordinator = RoundLoop(
            plan,
            clock,
            life.transport,
            peer.trainer,
            view,
            outer,
            lambda event: _journal(peer, life, event),
            inline,
            self.rounds,
            on_boundary=keep,
            upto=dict(peer.totals().upto),
            ruling=life.amendments.ruling,
            fetch_founded=self._fetch_founded,
            seal=PlainSeal(peer.peer_id),
        )
        view.banned = lambda: life.amendments.ruling(coordinator.live.round).banned
        if isinstance(coordinator._topology, Pairs):
            coordinator._topology.swaps.assumed_rate /= self.network.weight
        if coordinator.group is not None:
            coordinator.group.recall(peer.kept.group)
            coordinator.group.keep = lambda raw: setattr(peer.kept, "group", raw)
        group = coordinator.group
        state = DonatedState(outer, lambda: coordinator.live.round, clock.now, momentum=group is not None, group=group)
        life.donor.serve(
            ServedParts(
                amendments=life.amendments, view=view, matchmaker=coordinator.matchmaker, group=group, state=state
            )
        )
        return coordinator

    async def _seldom(self, seconds: float) -> None:
        """For looks at those that failed us: in long rounds there is time."""
        await nap(max(seconds, self._pace() / 6))

    def _pace(self) -> float:
        return pace(self._round_s() or None)

    def _round_s(self) -> float:
        """0: counted in steps."""
        return self.rounds.round_length if self.rounds.kind == "seconds" else 0.0

    def _record(self, peer: SimulatedPeer, life: Life) -> PeerRecord:
        live = life.coordinator.live if life.coordinator is not None else None
        now = self.hub.now()
        life.record = PeerRecord(
            peer_id=peer.peer_id,
            run_id=RUN,
            endpoints=(f"memory:{peer.number}",),
            reachable=life.reach.reachable,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            round=live.round if live else 0,
            tokens_per_s=1.0,
            status=life.coordinator.announced if life.coordinator is not None else Status.JOINING,
            issued_at=now,
            expires_at=now + self._lifetime_s,
            run_start=life.coordinator.run_start if life.coordinator else 0.0,
        )
        return life.record

    def _last_record(self, peer: SimulatedPeer, life: Life) -> PeerRecord:
        """The one made last, when but for its times it would be the same today."""
        last, coordinator = life.record, life.coordinator
        if last is None or coordinator is None:
            return self._record(peer, life)
        moved = last.round != coordinator.live.round or last.status is not coordinator.announced
        if moved or last.reachable != life.reach.reachable or last.run_start != coordinator.run_start:
            return self._record(peer, life)
        return last

    async def _fetch_founded(self, digest: bytes) -> torch.Tensor | None:
        return self.states.get(digest)

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, faults: Iterable[Fault] = ()) -> None:
        """All peers, from start to end, with these faults. Ends when the last living peer has ended and no killed one
        comes back while the run goes on. Raises what a peer raised."""
        self.mischief.plan(faults)
        for peer in self.peers:
            self._start(peer, peer.life, joins=False)
        try:
            while self._running:
                await self._news.wait()
                self._news.clear()
                for task in self._failed:
                    task.result()
                await self.mischief.comes_back(everybody_gone=not any(peer.alive for peer in self.peers))
        finally:
            await self._close()

    def _start(self, peer: SimulatedPeer, life: Life, *, joins: bool) -> None:
        context = contextvars.copy_context()
        context.run(GATE.set, life.gate)
        play = self._join(peer, life) if joins else self._together(peer, life)
        life.task = asyncio.get_running_loop().create_task(play, context=context)
        life.task.add_done_callback(lambda task: self._ended(life, task))

    def _ended(self, life: Life, task: asyncio.Task[None] | None) -> None:
        """Of itself (`task`), or killed."""
        if task is not None and not task.cancelled() and task.exception() is not None:
            self._failed.append(task)
        if not life.finished.is_set():
            life.finished.set()
            self._running -= 1
        self._news.set()

    def kill(self, peer: SimulatedPeer) -> None:
        """The machine is gone in the middle of whatever it does. No-op on a dead one."""
        if peer.alive:
            peer.life.over = peer.life.killed = True
            peer.life.killed_at = asyncio.get_running_loop().time()
            self.network.kill(peer.peer_id)
            peer.life.gate.close()
            peer.trainer.kill("killed with its machine")
            self._ended(peer.life, None)

    def restart(self, peer: SimulatedPeer, *, from_checkpoint: bool) -> None:
        """A killed machine is back. No-op on a living one."""
        if peer.alive:
            return
        if not from_checkpoint:
            peer.kept.last, peer.kept.group = None, b""
        self._start(peer, self._begin(peer), joins=True)

    async def _together(self, peer: SimulatedPeer, life: Life) -> None:
        """One of those that begin the run."""
        coordinator = self._coordinator(peer, life, OuterState.fresh(self.layout, self.first.clone()))
        await peer.trainer.start(peer.outer.params, 0, None)
        await self._play(peer, life, coordinator, 0)

    async def _join(self, peer: SimulatedPeer, life: Life) -> None:
        """As the daemon does after a kill: a state first, and what became of the work that died is named."""
        clock = VirtualClock()
        await life.directory.announce(self._record(peer, life))
        checkpoints = cast(CheckpointStore, peer.kept)
        context = JoinContext(
            run_id=RUN,
            me=peer.peer_id,
            directory=life.directory,
            transport=life.transport,
            clock=clock,
            say=lambda text: None,
            rng=life.rng,
        )
        state = await obtain_state(context, self.layout, checkpoints, momentum=self.method.topology == "group")
        coordinator = self._coordinator(peer, life, state.outer)
        _journal(peer, life, events.Started(peer_id=peer.peer_id, run_id=RUN.hex(), version="", resumed=state.why))
        if state.donor:
            fetched = events.StateFetched(
                donor=state.donor, round=state.round, bytes=state.nbytes, seconds=state.seconds
            )
            _journal(peer, life, fetched)
        coordinator.drop_outstanding("lost with the process that did it")
        await peer.trainer.start(state.outer.params, state.round, None)
        await self._play(peer, life, coordinator, state.round)

    async def _play(self, peer: SimulatedPeer, life: Life, coordinator: RoundLoop, round_: int) -> None:
        view, clock = life.view, VirtualClock()
        assert view is not None
        await view.announce()
        await view.look()
        rng = random.Random(peer.peer_id + "+" * (len(peer.lives) - 1))
        every = max(ASK_EVERY_S, self._round_s() / ASKS_A_ROUND)
        background = {
            asyncio.create_task(view.run()),
            asyncio.create_task(life.reach.run(view.known, SETTLED_EVERY_S)),
            asyncio.create_task(
                life.amendments.run(life.transport, clock, rng, view.known, every, view.watch.answered)
            ),
        }
        if self._stops:  # who looks at the clocks without a beat takes every round for a sleep
            waking = waking_of(life, coordinator, view, clock, lambda event: _journal(peer, life, event))
            background.add(asyncio.create_task(waking.run()))
        background.add(asyncio.create_task(view.watch.run(life.transport, lambda: view.peers, rng, self._seldom)))
        try:
            await coordinator.run(round_)
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)

    async def _close(self) -> None:
        """Let go of every process, dead ones too: they may run again, only to be cancelled, and write nothing."""
        await self.mischief.close()
        for peer in self.peers:
            peer.at_end = peer.trainer.counters()
        lives = [life for peer in self.peers for life in peer.lives]
        for life in lives:
            life.over = True
            life.gate.open()
            if life.task is not None:
                life.task.cancel()
        await asyncio.gather(*(life.task for life in lives if life.task is not None), return_exceptions=True)


def number_of(peer: PeerId) -> int:
    """Of a simulated peer, from its id."""
    return int(peer.rpartition("-")[2])


def _journal(peer: SimulatedPeer, life: Life, event: events.Event) -> None:
    if not life.over:
        peer.journal(event)
