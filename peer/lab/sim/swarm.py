"""A whole swarm in virtual time: production peers on the in-memory network, directory and trainers.

Construct it inside the virtual loop (`peer.lab.sim.virtual_clock.run_virtual`), then `await swarm.run(faults)`."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

import torch

from peer.exchange.build import MakeStrategy
from peer.lab.sim.directory import MemoryDirectoryHub
from peer.lab.sim.fault_injector import FaultInjector
from peer.lab.sim.faults import Fault
from peer.lab.sim.machine import Life, SimulatedPeer
from peer.lab.sim.process import SimulatedRun, run_founder, run_joiner, start_process
from peer.lab.sim.relay_node import RelayNode
from peer.lab.sim.setting import (
    MakeTrainer,
    SwarmSetting,
    SwarmWorld,
    fake_trainers,
    layout_of,
    peer_id_of,
)
from peer.lab.sim.virtual_clock import GATE, VirtualClock
from peer.lab.sim.world import network_of
from peer.protocol.messages import PeerId


class SimulatedSwarm:
    """A swarm of `count` simulated peers on one in-memory network, in virtual time."""

    def __init__(
        self,
        count: int,
        setting: SwarmSetting,
        world: SwarmWorld | None = None,
        *,
        step_seconds: Mapping[int, float] | float = 0.1,
        make_trainer: MakeTrainer | None = None,
        liars: Mapping[int, MakeStrategy] | None = None,
    ) -> None:
        """step_seconds: duration of an inner step of the fake trainers, of all or by peer number. make_trainer: makes
        other trainers instead. liars: see `SimulatedRun.liars`."""
        world = world or SwarmWorld()
        self.method, self.rounds, self.total_rounds = setting.method, setting.rounds, setting.total_rounds
        self.layout = setting.layout or layout_of(setting.method)
        self.first = torch.zeros(self.layout.elements) if setting.first is None else setting.first
        if world.closed is not None:
            world = replace(world, nodes=world.nodes | set(world.closed.node_ids))
        self.network = network_of(world, count, setting.seed)
        hide = self._views_missing(world.views.missing, setting.seed) if world.views.missing > 0 else None
        look = None if setting.method.one_state else world.views.look
        self.hub = MemoryDirectoryHub(VirtualClock().now, look, hide)
        self.states: dict[bytes, torch.Tensor] = {}
        """The states that an operator's node serves, by digest."""
        self._run = SimulatedRun(setting, world, self.layout, self.network, self.hub, self.states, liars or {})
        self._running = 0
        self._news = asyncio.Event()
        """Set when a life has ended."""
        self._failed: list[asyncio.Task[None]] = []
        make = make_trainer or fake_trainers(setting.seed, step_seconds)
        self.peers = [
            SimulatedPeer(number, peer_id_of(number), self.layout, make(number, self.layout, VirtualClock()))
            for number in range(count)
        ]
        for peer in self.peers:
            self._begin(peer)
        self.nodes = [RelayNode(self._run, node) for node in ([] if world.closed is None else world.closed.node_ids)]
        self.fault_injector = FaultInjector(self)

    def put_on_one_router(self, numbers: Iterable[int]) -> None:
        """Put these peers into one local network. To be called before `run`."""
        homes = [peer_id_of(number) for number in numbers]
        self.network.paths.put_on_one_router(homes)
        self.hub.put_on_one_router(homes)

    def _views_missing(self, part: float, seed: int) -> Callable[[PeerId, PeerId], bool]:
        """Return a `hide` function: a peer does not see another one with this probability, drawn again after each
        round's length."""
        length, drawn = self.rounds.round_length, dict[PeerId, tuple[int, frozenset[PeerId]]]()

        def hide(reader: PeerId, other: PeerId) -> bool:
            era = int(asyncio.get_running_loop().time() / length)
            if drawn.get(reader, (-1,))[0] != era:
                rng = random.Random(f"{seed}/{era}/{reader}")
                drawn[reader] = era, frozenset(peer.peer_id for peer in self.peers if rng.random() < part)
            return other in drawn[reader][1]

        return hide

    def _begin(self, peer: SimulatedPeer) -> Life:
        self._running += 1
        return start_process(self._run, peer)

    async def run(self, faults: Iterable[Fault] = (), absent: Container[int] = ()) -> None:
        """Run all peers to the end of the run, with these faults. Returns when the last living peer has ended and no
        killed one comes back before. Raises the exception of a peer that failed.

        absent: numbers of the peers that are off at the start. A restart among the faults lets them join."""
        self.fault_injector.plan(faults)
        for node in self.nodes:
            node.start()
        for peer in self.peers:
            if peer.number in absent:
                self.kill(peer)
            else:
                self._start(peer, peer.life, joins=False)
        try:
            while self._running:
                await self._news.wait()
                self._news.clear()
                for task in self._failed:
                    task.result()
                await self.fault_injector.wait_for_return(all_dead=not any(peer.alive for peer in self.peers))
        finally:
            await self._close()

    def _start(self, peer: SimulatedPeer, life: Life, *, joins: bool) -> None:
        context = contextvars.copy_context()
        context.run(GATE.set, life.gate)
        play = run_joiner(self._run, peer, life) if joins else run_founder(self._run, peer, life, self.first)
        task = asyncio.get_running_loop().create_task(play, context=context)
        life.set_task(task)
        task.add_done_callback(lambda task: self._ended(life, task))

    def _ended(self, life: Life, task: asyncio.Task[None] | None) -> None:
        """Count a life as ended: by itself (`task`), or by a kill (None)."""
        if task is not None and not task.cancelled() and task.exception() is not None:
            self._failed.append(task)
        if not life.finished.is_set():
            life.finished.set()
            self._running -= 1
        self._news.set()

    def kill(self, peer: SimulatedPeer) -> None:
        """Kill a machine at once, also in the middle of an exchange. Does nothing if it is dead."""
        if peer.alive:
            peer.life.mark_killed()
            self.network.kill(peer.peer_id)
            peer.life.gate.close()
            peer.trainer.kill("killed with its machine")
            self._ended(peer.life, None)

    def restart(self, peer: SimulatedPeer, *, from_checkpoint: bool) -> None:
        """Restart a killed machine, with or without its checkpoint. Does nothing to a living one."""
        if peer.alive:
            return
        if not from_checkpoint:
            peer.disk.erase()
        self._start(peer, self._begin(peer), joins=True)

    async def _close(self) -> None:
        """End every process. The tasks of killed processes run once more too, only to be cancelled; they write no
        journal."""
        await self.fault_injector.close()
        for node in self.nodes:
            await node.close()
        for peer in self.peers:
            peer.freeze_counters()
        lives = [life for peer in self.peers for life in peer.lives]
        for life in lives:
            life.mark_over()
            life.gate.open()
            if life.task is not None:
                life.task.cancel()
        await asyncio.gather(*(life.task for life in lives if life.task is not None), return_exceptions=True)
