"""Tests of `Condition` and `Shutdown`: waking tasks on a change of state, and on an orderly stop."""

from __future__ import annotations

import asyncio

from peer.aio.events import Condition, Shutdown
from peer.lab.sim.virtual_clock import run_virtual


def test_all_that_wait_are_woken_and_a_later_wait_is_not() -> None:
    async def main() -> None:
        condition, loop, woken = Condition(), asyncio.get_running_loop(), list[float]()

        async def waits() -> None:
            await condition.wait_for(10.0)
            woken.append(loop.time())

        loop.call_later(3.0, condition.notify_all)
        await asyncio.gather(waits(), waits())
        assert woken == [3.0, 3.0]
        await waits()
        assert woken[-1] == 13.0

    run_virtual(main())


def test_a_stop_ends_waits_and_calls() -> None:
    async def main() -> None:
        stop, loop = Shutdown(), asyncio.get_running_loop()
        assert not stop
        assert not await stop.wait_for(2.0)
        assert await stop.race(asyncio.sleep(1.0, "done")) == "done"
        loop.call_later(4.0, stop.set)
        assert await stop.race(asyncio.sleep(100.0, "done")) is None
        assert await stop.wait_for(100.0)
        assert stop
        assert loop.time() == 7.0

    run_virtual(main())
