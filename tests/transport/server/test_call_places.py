from __future__ import annotations

import asyncio
import contextlib

import pytest

from peer.errors import PartnerRefused
from peer.lab.sim.virtual_clock import run_virtual
from peer.transport.server.call_places import CallPlaces


class Calls:
    """Calls that hold their places until the test ends them."""

    def __init__(self, places: int, reserve: int) -> None:
        self.places = CallPlaces(places, reserve, "calls")
        self._end = asyncio.Event()

    async def call(self, block: str, *, proven: bool = False, timeout_s: float | None = None) -> str:
        try:
            async with self.places.held(block, proven=proven, timeout_s=timeout_s):
                await self._end.wait()
        except PartnerRefused as refusal:
            return refusal.code
        except TimeoutError:
            return "timeout"
        return "served"

    async def begin(self, block: str, *, proven: bool = False) -> asyncio.Task[str]:
        task = asyncio.create_task(self.call(block, proven=proven))
        await asyncio.sleep(0)
        return task

    def end(self) -> None:
        self._end.set()


def test_the_youngest_call_of_the_largest_block_is_broken_off() -> None:
    async def test() -> None:
        calls = Calls(4, 1)
        crowd = [await calls.begin("crowd") for _ in range(4)]
        assert await crowd[3] == "busy", "three places are for strangers"
        other = await calls.begin("other")
        assert await crowd[2] == "busy"
        assert len(calls.places) == 3
        calls.end()
        assert [await task for task in (crowd[0], crowd[1], other)] == ["served"] * 3
        assert len(calls.places) == 0

    run_virtual(test())


def test_proven_callers_have_places_of_their_own_and_keep_them() -> None:
    async def test() -> None:
        calls = Calls(4, 1)
        friends = [await calls.begin("crowd", proven=True) for _ in range(4)]
        assert calls.places.busy_reason("other") != ""
        assert await calls.call("other") == "busy"
        assert await calls.call("other", proven=True) == "busy"
        calls.end()
        assert [await task for task in friends] == ["served"] * 4

    run_virtual(test())


def test_time_that_runs_out_is_not_a_lost_place() -> None:
    async def test() -> None:
        calls = Calls(4, 1)
        assert await calls.call("one", timeout_s=1.0) == "timeout"
        assert len(calls.places) == 0

    run_virtual(test())


def test_a_call_that_is_cancelled_frees_its_place() -> None:
    async def test() -> None:
        calls = Calls(4, 1)
        task = await calls.begin("one")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(calls.places) == 0

    run_virtual(test())


def test_a_call_that_fails_by_itself_keeps_its_error() -> None:
    async def test() -> None:
        calls = Calls(4, 1)
        with pytest.raises(ConnectionError):
            async with calls.places.held("one"):
                raise ConnectionError
        with contextlib.suppress(TimeoutError):
            async with calls.places.held("one"):
                raise TimeoutError
        assert len(calls.places) == 0

    run_virtual(test())
