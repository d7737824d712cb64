"""How a simulated process notices that it was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.lab.sim.machine import Life
from peer.lab.sim.virtual_clock import VirtualClock
from peer.membership.peer_table import PeerTable
from peer.membership.suspend import SuspendRecovery, refresh
from peer.observe import events
from peer.protocol.swarm.suspend_detection import Reading
from peer.rounds.loop import RoundLoop


def waking_of(
    life: Life, coordinator: RoundLoop, view: PeerTable, clock: VirtualClock, emit: Callable[[events.Event], None]
) -> SuspendRecovery:
    """As the daemon's, on virtual time: a machine never sleeps here, a process may be stopped."""

    def read() -> Reading:
        now = asyncio.get_running_loop().time()
        return Reading(now, now, now)

    async def fresh() -> None:
        await refresh(life.transport, clock, view, life.rng, lambda: None)

    waking = SuspendRecovery(fresh, emit, coordinator.woke, read)
    coordinator.settled = waking.settled
    return waking
