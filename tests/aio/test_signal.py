"""Tests of `Signal.wait_for`: it ends when the event is set or the time has passed."""

from __future__ import annotations

import asyncio

import pytest

from peer.aio.events import Signal
from peer.lab.sim.virtual_clock import run_virtual


def test_it_is_heard_when_it_rings_and_not_later() -> None:
    async def main() -> None:
        bell, loop = Signal(), asyncio.get_running_loop()
        loop.call_later(3.0, bell.set)
        assert await bell.wait_for(10.0)
        assert loop.time() == 3.0

    run_virtual(main())


def test_it_is_waited_for_so_long_and_no_longer() -> None:
    async def main() -> None:
        bell, loop = Signal(), asyncio.get_running_loop()
        assert not await bell.wait_for(2.0)
        assert loop.time() == 2.0
        loop.call_later(1.0, bell.set)
        assert await bell.wait_for(5.0)
        assert loop.time() == 3.0

    run_virtual(main())


def test_one_that_was_rung_before_is_heard_at_once_until_it_is_hushed() -> None:
    async def main() -> None:
        bell, loop = Signal(), asyncio.get_running_loop()
        bell.set()
        assert await bell.wait_for(5.0)
        assert await bell.wait_for(5.0)
        assert loop.time() == 0.0
        bell.clear()
        assert not await bell.wait_for(5.0)
        assert loop.time() == 5.0

    run_virtual(main())


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_without_any_time_others_run_all_the_same(seconds: float) -> None:
    async def main() -> None:
        bell, turns = Signal(), list[int]()
        asyncio.get_running_loop().call_soon(turns.append, 1)
        assert not await bell.wait_for(seconds)
        assert turns == [1]

    run_virtual(main())


def test_one_whose_wait_is_cancelled_can_be_waited_for_again() -> None:
    async def main() -> None:
        bell = Signal()
        task = asyncio.create_task(bell.wait_for(100.0))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        bell.set()
        assert await bell.wait_for(1.0)

    run_virtual(main())
