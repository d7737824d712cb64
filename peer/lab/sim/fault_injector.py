"""Injects the faults of a plan into a simulated swarm."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from peer.errors import UsageError
from peer.lab.sim.faults import HELPER_AWAY_S, Fault
from peer.lab.sim.links import Link
from peer.observe.events import Event

if TYPE_CHECKING:
    from peer.lab.sim.machine import SimulatedPeer
    from peer.lab.sim.swarm import SimulatedSwarm

COMES_BACK = ("restart", "rejoin")
NOT_SIMULATED = {"stall_trainer": "a virtual trainer has no steps of its own to be stopped between"}
"""Kinds of faults that only real processes can have -> the reason."""


class FaultInjector:
    """Injects the faults of a plan into a simulated swarm, each at its time or with its journal event.

    injected: (loop time in seconds, fault) for each fault that took effect. A fault has no effect, and is not listed,
    if its peer is dead or has finished the run, or if it restarts a peer that is alive."""

    def __init__(self, swarm: SimulatedSwarm) -> None:
        self._swarm = swarm
        self._tasks: set[asyncio.Task[None]] = set()
        self._returns: set[asyncio.Task[None]] = set()
        self._waiting: list[Fault] = []
        self._seen: Counter[tuple[int, str]] = Counter()
        self._links: dict[int, Link] = {}
        self.injected: list[tuple[float, Fault]] = []

    def plan(self, faults: Iterable[Fault]) -> None:
        """Start to inject these faults; their times count from now. Raises UsageError for a kind that cannot be
        simulated."""
        faults = list(faults)
        for fault in faults:
            if fault.kind in NOT_SIMULATED:
                raise UsageError(f"{fault.kind} cannot be simulated: {NOT_SIMULATED[fault.kind]}", "Leave it out.")
        self._waiting = [fault for fault in faults if fault.on]
        for fault in faults:
            if fault.at is not None:
                self._track(asyncio.create_task(self._inject_later(fault, fault.at)), fault.kind in COMES_BACK)
        for number in {fault.peer for fault in self._waiting}:
            self._swarm.peers[number].listeners.append(self._on_event)

    async def wait_for_return(self, *, all_dead: bool) -> None:
        """While all machines are dead, wait until a killed machine is restarted by the plan. Return at once unless
        `all_dead`."""
        while all_dead and self._returns and not any(peer.alive for peer in self._swarm.peers):
            await asyncio.wait(self._returns, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel the faults that have not happened yet."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _track(self, task: asyncio.Task[None], comes_back: bool) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if comes_back:
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def _inject_later(self, fault: Fault, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._inject(fault)

    def _on_event(self, peer: SimulatedPeer, event: Event) -> None:
        """Inject the faults that wait for this event of this peer's journal."""
        self._seen[peer.number, event.kind] += 1
        times = self._seen[peer.number, event.kind]
        for fault in [f for f in self._waiting if (f.peer, f.on, f.nth) == (peer.number, event.kind, times)]:
            self._waiting.remove(fault)
            self._inject(fault)

    def _inject(self, fault: Fault) -> None:
        peer = self._swarm.peers[fault.peer]
        if peer.alive == (fault.kind in COMES_BACK) or peer.lives[-1].finished.is_set() == peer.alive:
            return  # a dead peer can only come back, and a peer that finished the run has no faults any more
        self.injected.append((asyncio.get_running_loop().time(), fault))
        match fault.kind:
            case "kill":
                self._swarm.kill(peer)
            case "restart" | "rejoin":
                self._swarm.restart(peer, from_checkpoint=fault.kind == "restart")
            case "kill_trainer":
                peer.trainer.kill()
            case _:
                self._begin(fault, peer)
                self._track(_outside(self._undo(fault, peer)), comes_back=False)

    def _begin(self, fault: Fault, peer: SimulatedPeer) -> None:
        network, me = self._swarm.network, peer.peer_id
        others = [self._swarm.peers[number].peer_id for number in fault.others]
        match fault.kind:
            case "stall":
                peer.life.gate.close()
                network.changed(me)
            case "partition":
                network.partition([me, *others])
                self._swarm.hub.partition([me, *others])
            case "kill_helper":
                self._swarm.hub.partition([me])
            case "cut" | "sever" | "cut_one_way":
                for other in others:
                    network.cut(me, other, both_ways=fault.kind != "cut_one_way")
                if fault.kind == "sever":
                    network.flows.break_off(me)
            case "disk_full":
                peer.disk.set_full(True)
            case "clock_jump":
                pass  # no effect: a peer reads the wall clock only at its start and counts on from there
            case "loss_burst":
                self._relink(
                    peer, replace(self._own_link(peer), loss=min(0.99, self._own_link(peer).loss + fault.amount))
                )
            case "slow_link":
                link = self._own_link(peer)
                self._relink(peer, replace(link, up=link.up * fault.amount, down=link.down * fault.amount))
            case "lag":
                link = self._own_link(peer)
                self._relink(peer, replace(link, latency_s=link.latency_s + fault.amount))

    async def _undo(self, fault: Fault, peer: SimulatedPeer) -> None:
        life = peer.life
        await asyncio.sleep(fault.seconds or HELPER_AWAY_S)
        network, me = self._swarm.network, peer.peer_id
        match fault.kind:
            case "stall":
                if not life.over:
                    life.gate.open()
                    network.changed(me)
            case "partition":
                network.heal()
                self._swarm.hub.heal()
            case "kill_helper":
                self._swarm.hub.heal()
            case "disk_full":
                peer.disk.set_full(False)
            case "clock_jump":
                pass
            case "cut" | "sever" | "cut_one_way":
                for number in fault.others:
                    network.mend(me, self._swarm.peers[number].peer_id)
            case _:
                self._relink(peer, self._own_link(peer))

    def _own_link(self, peer: SimulatedPeer) -> Link:
        """Return the peer's link without faults, as it was when the first fault changed it."""
        return self._links.setdefault(peer.number, self._swarm.network.link_of(peer.peer_id))

    def _relink(self, peer: SimulatedPeer, link: Link) -> None:
        self._swarm.network.links[peer.peer_id] = link
        self._swarm.network.changed(peer.peer_id)


def _outside(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task outside any machine's context, so that closing the gate of the machine that caused it does not stop
    it."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())
