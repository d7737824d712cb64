"""`join_streams` between two connections, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from peer.errors import PartnerRefused
from peer.transport.relay.pipe import BUFFER, CHUNK, LINGER_S, at_once, join_streams
from tests.support.memory_streams import KERNEL, connection, ends, is_gone, run_streams, transport_of

IDLE_S, TOTAL_S = 60.0, 600.0
BIG = bytes(range(256)) * 2**12
ONE_READ = KERNEL + 2 * CHUNK


class Joined:
    """Two joined connections, with their outer ends."""

    def __init__(self, turn: Callable[[int], Any] = at_once, chunk: int = CHUNK) -> None:
        self.one, self.near = connection()
        self.other, self.far = connection()
        self.pipe = asyncio.create_task(
            join_streams(self.near, self.far, turn=turn, chunk=chunk, idle_s=IDLE_S, total_s=TOTAL_S)
        )

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def over(self) -> float:
        """Wait until the joined connections are closed. Return the time."""
        await self.pipe
        return self.now


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_streams(test())

    run.__name__ = test.__name__
    return run


async def until_idle() -> None:
    """Run the loop until nothing is left that needs no time."""
    for _ in range(200):
        await asyncio.sleep(0)


@scenario
async def test_bytes_pass_both_ways_at_once() -> None:
    joined = Joined()
    joined.one.writer.write(BIG)
    joined.other.writer.write(BIG[::-1])
    assert await joined.other.reader.readexactly(len(BIG)) == BIG
    assert await joined.one.reader.readexactly(len(BIG)) == BIG[::-1]
    joined.pipe.cancel()


@pytest.mark.parametrize("first", [True, False])
def test_an_end_of_one_way_does_not_end_the_other(first: bool) -> None:
    @scenario
    async def attempt() -> None:
        joined = Joined()
        asks, answers = (joined.one, joined.other) if first else (joined.other, joined.one)
        asks.writer.write(b"question")
        asks.writer.write_eof()
        assert await answers.reader.read() == b"question"
        answers.writer.write(BIG)
        answers.writer.write_eof()
        assert await asks.reader.read() == BIG
        await joined.over()
        assert joined.near.writer.is_closing()
        assert joined.far.writer.is_closing()

    attempt()


@scenario
async def test_the_second_way_has_some_seconds_to_end() -> None:
    joined = Joined()
    joined.one.writer.write_eof()
    assert await ends(joined.other)
    assert await joined.over() == pytest.approx(LINGER_S)
    assert await ends(joined.one)


@scenario
async def test_a_receiver_that_does_not_read_makes_the_sender_wait() -> None:
    joined = Joined()
    sent, most = 0, 2 * (BUFFER + ONE_READ) + 4 * KERNEL
    transport_of(joined.other).pause_reading()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while sent < 100 * most:
                joined.one.writer.write(bytes(KERNEL))
                sent += KERNEL
                await joined.one.writer.drain()
    assert sent <= most
    assert transport_of(joined.far).held <= BUFFER + ONE_READ
    transport_of(joined.other).resume_reading()
    assert len(await joined.other.reader.readexactly(sent)) == sent
    joined.pipe.cancel()


@scenario
async def test_one_way_that_stands_still_does_not_hold_up_the_other() -> None:
    joined = Joined()
    transport_of(joined.other).pause_reading()
    joined.one.writer.write(BIG)
    joined.other.writer.write(BIG)
    assert await joined.one.reader.readexactly(len(BIG)) == BIG
    joined.pipe.cancel()


@scenario
async def test_a_silent_pipe_ends_in_time_and_one_that_speaks_now_and_then_does_not() -> None:
    joined = Joined()
    for _ in range(5):
        await asyncio.sleep(IDLE_S * 0.9)  # virtual
        joined.one.writer.write(b"x")
        assert await joined.other.reader.readexactly(1) == b"x"
    spoke_at = joined.now
    assert await joined.over() == pytest.approx(spoke_at + IDLE_S)
    assert await ends(joined.one)
    assert await ends(joined.other)


@scenario
async def test_no_pipe_lasts_for_ever() -> None:
    joined = Joined()

    async def talk() -> None:
        while True:
            joined.one.send(b"x")
            await asyncio.sleep(1.0)  # virtual

    talking = asyncio.create_task(talk())
    assert await joined.over() == pytest.approx(TOTAL_S)
    talking.cancel()


@scenario
async def test_a_receiver_that_never_reads_ends_the_pipe_in_the_end() -> None:
    joined = Joined()
    transport_of(joined.other).pause_reading()
    joined.one.writer.write(BIG)
    assert await joined.over() == pytest.approx(IDLE_S)
    assert not is_gone(joined.far), "what is held may still be taken"
    await asyncio.sleep(LINGER_S + 0.1)  # virtual
    assert is_gone(joined.far)


@pytest.mark.parametrize("first", [True, False])
def test_a_broken_connection_ends_the_other_one(first: bool) -> None:
    @scenario
    async def attempt() -> None:
        joined = Joined()
        broken, whole = (joined.one, joined.other) if first else (joined.other, joined.one)
        whole.writer.write(b"before")
        await until_idle()
        broken.abort()
        assert await ends(whole)
        whole.send(b"into the void")
        whole.close()
        await joined.over()
        assert joined.near.writer.is_closing()
        assert joined.far.writer.is_closing()

    attempt()


@scenario
async def test_a_turn_that_is_refused_ends_the_pipe_at_once() -> None:
    left = 3 * CHUNK

    async def turn(nbytes: int) -> None:
        nonlocal left
        left -= nbytes
        if left < 0:
            raise PartnerRefused("budget", "the quota is used up")

    joined = Joined(turn)
    joined.one.writer.write(BIG)
    await joined.over()
    assert joined.now == 0.0
    passed = await joined.other.reader.read()
    assert 0 < len(passed) <= 3 * CHUNK
    assert BIG.startswith(passed)


@scenario
async def test_no_chunk_is_larger_than_it_may_be() -> None:
    sizes: list[int] = []

    async def turn(nbytes: int) -> None:
        sizes.append(nbytes)

    joined = Joined(turn, chunk=1000)
    joined.one.writer.write(BIG)
    assert await joined.other.reader.readexactly(len(BIG)) == BIG
    assert max(sizes) <= 1000
    assert sum(sizes) == len(BIG)
    joined.pipe.cancel()


@scenario
async def test_a_cancelled_pipe_closes_both_connections_and_leaves_nothing_running() -> None:
    joined = Joined()
    joined.one.writer.write(BIG)
    await until_idle()
    joined.pipe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joined.pipe
    assert joined.near.writer.is_closing()
    assert joined.far.writer.is_closing()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@scenario
async def test_what_was_taken_is_delivered_before_the_connection_closes() -> None:
    joined = Joined()
    joined.one.writer.write(b"all of it")
    joined.one.writer.write_eof()
    joined.other.writer.write_eof()
    await joined.over()
    assert await joined.other.reader.read() == b"all of it"


@scenario
async def test_to_a_connection_that_is_gone_nothing_is_sent() -> None:
    one, other = connection()
    other.abort()
    await until_idle()
    one.send(b"x")  # a write would raise
    one.close()
    one.abort()
