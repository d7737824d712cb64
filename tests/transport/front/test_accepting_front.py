"""The front before a server that only listens: what passes, what ends, and what is held."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from peer.protocol.messages import PeerId
from peer.transport.front.callers import CallerTable, FrontLimits
from peer.transport.front.front import AcceptingFront
from peer.transport.server.bind import bind

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Run = Callable[[Coroutine[Any, Any, None]], None]
ONE_READ = 2**18
BIG = 8 * 2**20


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Daemons run on uvloop, and most tests do not."""
    return lambda test: request.param(asyncio.wait_for(test, 20))


class Before:
    """A front, and all that is behind it."""

    def __init__(self, front: AcceptingFront, table: CallerTable, port: int) -> None:
        self.front, self.table, self.port = front, table, port

    async def call(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def before(serve: Serve | None, limits: FrontLimits | None = None) -> AsyncIterator[Before]:
    """`serve` None: nobody listens inside."""
    inside = await asyncio.start_server(serve or echo, "127.0.0.1", 0)
    inner = inside.sockets[0].getsockname()[1]
    if serve is None:
        inside.close()
        await inside.wait_closed()
    table = CallerTable(limits)
    front = AcceptingFront(table)
    sockets, port = bind(["127.0.0.1"], 0)
    await front.open(sockets, inner)
    try:
        yield Before(front, table, port)
    finally:
        await front.close()
        inside.close()
        assert len(table) == 0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer what was said, once all is said."""
    said = await reader.read()
    writer.write(said)
    await writer.drain()
    writer.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def is_over(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_all_passes_both_ways_and_an_end_of_one_way_does_not_end_the_other(run: Run) -> None:
    async def main() -> None:
        said = bytes(range(256)) * (BIG // 256)
        async with before(echo) as front:
            reader, writer = await front.call()
            writer.write(said)
            writer.write_eof()
            assert await reader.read() == said
            writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_a_receiver_that_does_not_read_makes_the_sender_wait(run: Run) -> None:
    async def main() -> None:
        read_on, heard = asyncio.Event(), 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            await read_on.wait()
            while chunk := await reader.read(2**16):
                heard += len(chunk)
            writer.close()

        async with before(slow) as front:
            reader, writer = await front.call()
            writer.write(bytes(BIG))
            await until(lambda: bool(front.front._splices))
            (splice,) = front.front._splices
            outer, inner = splice.outer, splice.inner
            await until(lambda: inner.transport is not None and inner.transport.get_write_buffer_size() > 0)
            assert outer.transport is not None
            assert inner.transport is not None
            await until(lambda: not outer.transport.is_reading())
            assert inner.transport.get_write_buffer_size() <= front.front.limits.buffer + ONE_READ
            read_on.set()
            writer.write_eof()
            assert await is_over(reader)
            assert heard == BIG
            writer.close()

    run(main())


def test_a_caller_that_does_not_read_makes_the_server_wait(run: Run) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(BIG))
            await writer.drain()
            await reader.read()
            writer.close()

        async with before(talk) as front:
            reader, writer = await front.call()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"speak")
            await until(lambda: bool(front.front._splices))
            (splice,) = front.front._splices
            await until(lambda: splice.inner.transport is not None and not splice.inner.transport.is_reading())
            assert splice.outer.transport is not None
            assert splice.outer.transport.get_write_buffer_size() <= front.front.limits.buffer + ONE_READ
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await reader.readexactly(BIG)) == BIG
            writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_a_caller_counts_before_it_says_a_word_and_leaves_in_time(run: Run) -> None:
    async def main() -> None:
        calls = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal calls
            calls += 1
            await echo(reader, writer)

        async with before(serve, FrontLimits(connections=3, reserve=1, greet_s=0.3)) as front:
            silent = [await front.call() for _ in range(2)]
            await until(lambda: len(front.table) == 2)
            turned_away, _ = third = await front.call()
            assert await is_over(turned_away)
            assert calls == 0, "nothing was said, so nothing was connected inside"
            for reader, _ in silent:
                assert await is_over(reader)
            assert len(front.table) == 0
            for _, writer in [*silent, third]:
                writer.close()

    run(main())


def test_one_that_proved_a_key_stays(run: Run) -> None:
    async def main() -> None:
        async with before(echo, FrontLimits(connections=3, reserve=1, greet_s=0.3)) as front:
            reader, writer = await front.call()
            silent, other = await front.call()
            writer.write(b"hello")
            await until(lambda: bool(front.table._inside))
            (port,) = front.table._inside
            front.table.greeted(f"ipv4:127.0.0.1:{port}", PeerId("caller"), proven=False)
            assert await is_over(silent)
            writer.write_eof()
            assert await reader.read() == b"hello"
            for one in (writer, other):
                one.close()

    run(main())


def test_a_caller_hears_an_end_when_nobody_listens_inside(run: Run) -> None:
    async def main() -> None:
        async with before(None) as front:
            reader, writer = await front.call()
            writer.write(b"hello")
            assert await is_over(reader)
            writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_a_connection_inside_that_ends_at_once_ends_the_callers_too(run: Run) -> None:
    async def main() -> None:
        async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        async with before(drop) as front:
            for _ in range(20):
                reader, writer = await front.call()
                writer.write(b"hello")
                assert await is_over(reader)
                writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_callers_that_leave_while_they_are_connected_inside_leave_nothing(run: Run) -> None:
    async def main() -> None:
        async with before(echo) as front:
            for number in range(40):
                with socket.create_connection(("127.0.0.1", front.port)) as caller:
                    caller.sendall(b"hello")
                    if number % 2:
                        await asyncio.sleep(0)
            await until(lambda: not front.front._splices)
            assert len(front.table) == 0
            assert not front.table._inside

    run(main())


def test_one_end_does_not_wait_for_the_other_for_ever(run: Run) -> None:
    async def main() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"bye")
            writer.close()

        async with before(leave, FrontLimits(linger_s=0.3)) as front:
            reader, writer = await front.call()
            writer.write(b"hello")
            assert await reader.readexactly(3) == b"bye"
            await until(lambda: len(front.table) == 0)  # though this caller never closes
            writer.close()

    run(main())


def test_close_ends_all_that_is_under_way(run: Run) -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        async with before(silent) as front:
            ends = [await front.call() for _ in range(10)]
            for number, (_, writer) in enumerate(ends):
                if number % 2:
                    writer.write(b"hello")
            await until(lambda: len(front.table) == 10)
            await front.front.close()
            assert not front.front._splices
            for reader, writer in ends:
                assert await is_over(reader)
                writer.close()
            with pytest.raises(ConnectionRefusedError):
                await front.call()

    run(main())
