"""Tests of `Latch`, and of `race` with a latch."""

from __future__ import annotations

import asyncio

import pytest

from peer.aio.events import Latch
from peer.aio.tasks import race
from peer.lab.sim.virtual_clock import run_virtual


def test_its_future_is_done_as_soon_as_it_is_set_and_new_when_it_is_cleared() -> None:
    async def main() -> None:
        flag = Latch()
        first = flag.future
        assert not first.done()
        assert flag.future is first
        flag.set()
        flag.set()
        assert first.done()
        flag.clear()
        assert not flag.future.done()
        assert first.done(), "who waited was told"

    run_virtual(main())


def test_one_that_was_set_before_is_told_at_once() -> None:
    async def main() -> None:
        flag = Latch()
        flag.set()
        assert flag.future.done()

    run_virtual(main())


def test_clearing_what_nobody_set_leaves_those_who_wait() -> None:
    async def main() -> None:
        flag = Latch()
        waiting = flag.future
        flag.clear()
        flag.set()
        assert waiting.done()

    run_virtual(main())


def test_a_call_is_cancelled_when_it_is_told_and_may_be_told_again() -> None:
    flag, ended = Latch(), list[str]()

    async def call() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return "never"

    async def fails() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().call_soon(flag.set)
        assert await race(flag.future, call()) is None
        assert ended == ["cancelled"]
        flag.clear()
        assert await race(flag.future, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ZeroDivisionError):
            await race(flag.future, fails())
        assert not flag.future.done()

    run_virtual(main())
