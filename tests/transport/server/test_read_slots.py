"""The server reads from only a few callers at a time, and no caller can occupy a slot for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from peer.errors import PartnerRefused
from peer.lab.sim.virtual_clock import run_virtual
from peer.transport.server.read_slots import ReadSlots


def says(after_s: float, what: str = "hi") -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        await asyncio.sleep(after_s)  # of virtual time
        return what

    return read


async def outcome(places: ReadSlots, after_s: float, timeout_s: float = 5.0) -> tuple[str, float]:
    try:
        said = await places.read(says(after_s), timeout_s)
    except TimeoutError:
        said = "silent"
    except PartnerRefused as refused:
        said = refused.code
    return said, asyncio.get_running_loop().time()


def test_no_more_are_read_from_than_there_are_places() -> None:
    now, most = 0, 0

    async def read() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    async def main() -> None:
        places = ReadSlots(3)
        await asyncio.gather(*(places.read(read, 5.0) for _ in range(20)))

    run_virtual(main())
    assert (now, most) == (0, 3)


def test_alone_a_caller_has_its_whole_time() -> None:
    async def main() -> list[tuple[str, float]]:
        return [await outcome(ReadSlots(1), 4.0), await outcome(ReadSlots(1), 99.0)]

    assert run_virtual(main()) == [("hi", pytest.approx(4.0)), ("silent", pytest.approx(9.0))]


@pytest.mark.parametrize("others", [0, 1])
def test_time_in_which_our_own_loop_stood_still_is_not_the_callers(others: int) -> None:
    async def main() -> str:
        places, loop = ReadSlots(1, patience_s=1.0), asyncio.get_running_loop()
        loop.call_later(0.05, lambda: setattr(loop, "_now", loop.time() + 30.0))
        first, *_ = await asyncio.gather(outcome(places, 0.3), *(outcome(places, 0.1) for _ in range(others)))
        return first[0]

    assert run_virtual(main()) == "hi"


def test_who_says_nothing_loses_its_place_to_one_who_waits() -> None:
    async def main() -> list[tuple[str, float]]:
        places = ReadSlots(1, patience_s=1.0)
        return list(await asyncio.gather(outcome(places, 99.0), outcome(places, 0.1)))

    (idle, at), (honest, done) = run_virtual(main())
    assert (idle, honest) == ("silent", "hi")
    assert 1.0 <= at < done <= 1.4


def test_a_newcomer_passes_a_line_of_silent_callers() -> None:
    async def main() -> tuple[str, float]:
        places = ReadSlots(2, patience_s=1.0)
        idle = [asyncio.create_task(outcome(places, 99.0)) for _ in range(50)]
        await asyncio.sleep(0.5)
        before = asyncio.get_running_loop().time()
        said, at = await outcome(places, 0.1)
        assert {end for end, _ in await asyncio.gather(*idle)} == {"silent", "busy"}
        return said, at - before

    said, took = run_virtual(main())
    assert said == "hi"
    assert took <= 1.5


@pytest.mark.parametrize("when", ["waiting", "reading", "given the place"])
def test_a_cancelled_caller_leaves_its_place(when: str) -> None:
    async def main() -> str:
        places = ReadSlots(1)
        holder = asyncio.create_task(places.read(says(0.5), 5.0))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(places.read(says(0.5), 5.0))
        await asyncio.sleep({"waiting": 0.1, "reading": 0.7, "given the place": 0.1}[when])
        if when == "given the place":
            holder.add_done_callback(lambda _: waiting.cancel())
        else:
            waiting.cancel()
        await asyncio.wait({holder, waiting})
        return await places.read(says(0.0), 1.0)

    assert run_virtual(main()) == "hi"
