"""How a simulated process notices that it was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.daemon.coordinator import Coordinator
from peer.daemon.view import View
from peer.daemon.waking import Waking, refresh
from peer.observe import events
from peer.protocol.pulse import Reading
from peer.testing.clock import VirtualClock
from peer.testing.member import Life


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
