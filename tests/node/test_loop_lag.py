"""How late the event loop runs its timers."""

from __future__ import annotations

import asyncio

from peer.node.metrics import LoopLag


def test_a_blocked_event_loop_shows_as_lag() -> None:
    async def main() -> None:
        lag = LoopLag()
        task = asyncio.create_task(lag.run())
        await asyncio.sleep(0)
        now = asyncio.get_running_loop().time
        end = now() + 0.6
        while now() < end:
            pass  # blocks the loop, as a heavy callback does
        assert lag.read_and_reset() >= 0.3
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(main())
