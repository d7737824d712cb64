"""How a simulated process notices that it was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.lab.sim.machine import Life
from peer.lab.sim.virtual_clock import VirtualClock
from peer.membership.peer_table import View
from peer.membership.suspend import Waking, refresh
from peer.observe import events
from peer.protocol.swarm.suspend_detection import Reading
from peer.rounds.loop import Coordinator


def waking_of(
    life: Life, coordinator: Coordinator, view: View, clock: VirtualClock, emit: Callable[[events.Event], None]
) -> Waking:
    """As the daemon's, on virtual time: a machine never sleeps here, a process may be stopped."""

    def read() -> Reading:
        now = asyncio.get_running_loop().time()
        return Reading(now, now, now)

    async def fresh() -> None:
        await refresh(life.transport, clock, view, life.rng, lambda: None)

    waking = Waking(fresh, emit, coordinator.woke, read)
    coordinator.settled = waking.settled
    return waking
