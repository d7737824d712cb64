"""The relays of a local swarm: they identify the caller, and apply the faults of links."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from peer.lab.localswarm.chaos import _effect
from peer.lab.localswarm.relay import LINK_RATE, Effect, Links, Relay, free_port, inside, outside
from peer.lab.localswarm.socket_owners import children, command_of, owner
from peer.lab.sim.faults import Fault

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="loopback addresses beside 127.0.0.1 and /proc")
SOON_S = 5.0
Call = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def echo(links: Links, seen: list[str]) -> AsyncIterator[Call]:
    """Run an echo server as node 1, behind a relay. This process is node 2."""
    port = free_port(inside(1))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])
        while chunk := await reader.read(2**16):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, inside(1), port)
    relay = Relay(1, (port,), links, lambda: {os.getpid(): 2})
    await relay.start()
    calls: list[asyncio.StreamWriter] = []

    async def call() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(outside(1), port)
        calls.append(writer)
        return reader, writer

    try:
        yield call
    finally:
        for writer in calls:
            writer.transport.abort()
        await relay.close()
        server.close()


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: bytes) -> bytes:
    writer.write(what)
    async with asyncio.timeout(SOON_S):
        return await reader.readexactly(len(what))


def between(fault: Fault) -> Effect:
    return _effect(fault)


def test_what_is_sent_arrives_and_the_callee_sees_the_caller_where_it_can_be_reached() -> None:
    async def main() -> None:
        seen: list[str] = []
        async with echo(Links(), seen) as call:
            reader, writer = await call()
            assert await said(reader, writer, b"x" * 300_000) == b"x" * 300_000
        assert seen == [outside(2)]

    asyncio.run(main())


def test_a_cut_link_says_nothing_until_it_is_mended() -> None:
    async def main() -> None:
        links = Links()
        async with echo(links, []) as call:
            reader, writer = await call()
            assert await said(reader, writer, b"one") == b"one"
            cut = between(Fault("cut", 0, at=0.0, seconds=1.0, others=(1,)))
            other = between(Fault("cut", 0, at=0.0, seconds=1.0, others=(2,)))
            links.begin(other)
            assert await said(reader, writer, b"two") == b"two", "another link"
            links.begin(cut)
            writer.write(b"three")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
            links.end(cut)
            async with asyncio.timeout(SOON_S):
                assert await reader.readexactly(5) == b"three", "as TCP does, it comes later"

    asyncio.run(main())


def test_a_severed_link_breaks_and_refuses() -> None:
    async def main() -> None:
        links = Links()
        async with echo(links, []) as call:
            reader, writer = await call()
            assert await said(reader, writer, b"one") == b"one"
            severed = between(Fault("sever", 1, at=0.0, seconds=1.0, others=(0,)))
            links.begin(severed)
            async with asyncio.timeout(SOON_S):
                assert await _breaks(reader)
            async with asyncio.timeout(SOON_S):
                assert await _breaks((await call())[0])
            links.end(severed)
            assert await said(*await call(), b"two") == b"two"

    asyncio.run(main())


async def _breaks(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_each_kind_touches_whom_it_names() -> None:
    one_way = between(Fault("cut_one_way", 0, at=0.0, seconds=1.0, others=(1,)))
    assert one_way.touches(1, 2)
    assert not one_way.touches(2, 1)
    side = between(Fault("partition", 0, at=0.0, seconds=1.0, others=(1,)))
    assert side.touches(1, 3)
    assert side.touches(0, 2), "the bootstrap node is on the other side"
    assert side.touches(None, 1), "so is a stranger"
    assert not side.touches(1, 2)
    slow = between(Fault("slow_link", 0, at=0.0, seconds=1.0, amount=0.5))
    assert slow.rate == LINK_RATE / 2
    assert slow.touches(1, 4)
    assert not slow.touches(2, 4)
    assert between(Fault("lag", 0, at=0.0, seconds=1.0, amount=0.5)).delay_s == 0.5


def test_a_slow_link_is_as_slow_as_it_says() -> None:
    async def main() -> float:
        links, loop = Links(), asyncio.get_running_loop()
        links.begin(Effect(lambda sender, receiver: True, rate=1e6))
        began = loop.time()
        await links.passed(1, 2, 100_000)
        return loop.time() - began

    assert 0.09 < asyncio.run(main()) < 2.0


@pytest.mark.processes
def test_processes_are_known_by_their_sockets_and_parents() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        here = server.sockets[0].getsockname()[:2]
        _, writer = await asyncio.open_connection(*here)
        mine = writer.get_extra_info("sockname")[:2]
        assert owner(mine, here, {1: 5, os.getpid(): 7}) == 7
        assert owner(mine, here, {}) is None
        assert owner(("127.0.0.1", 1), here, {os.getpid(): 7}) is None
        writer.close()
        server.close()
        child = await asyncio.create_subprocess_exec("sleep", "30")
        try:
            assert children([os.getpid()])[child.pid] == os.getpid()
            assert command_of(child.pid) == "sleep 30 "
        finally:
            child.kill()
            await child.wait()
        assert command_of(child.pid) == ""

    asyncio.run(main())
