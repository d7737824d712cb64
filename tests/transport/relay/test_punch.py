"""Connections from the port of another connection, over loopback.

Loopback is too fast for simultaneous open: the kernel refuses each end before the other has started. So the other end
listens here, on the port of its connection to the relay. Tests in network namespaces with routers cover the
rest."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from peer.errors import PartnerLost
from peer.transport.relay import punch
from peer.transport.relay.pipe import Stream
from peer.transport.relay.punch import connected, punched, reusable

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda test: request.param(asyncio.wait_for(test, 20))


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))
        return True
    return False


@contextlib.asynccontextmanager
async def relay(host: str) -> AsyncIterator[int]:
    """Listen as a relay would. Return the port."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


def port_of(stream: Stream) -> int:
    return int(stream.writer.get_extra_info("sockname")[1])


@contextlib.asynccontextmanager
async def listening(stream: Stream) -> AsyncIterator[asyncio.Queue[Stream]]:
    """Accept calls on the port of this connection. Return the list of accepted ones."""
    came: asyncio.Queue[Stream] = asyncio.Queue()
    host, port = stream.writer.get_extra_info("sockname")[:2]
    there = reusable(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
    server = await asyncio.start_server(lambda *ends: came.put_nowait(Stream.of(*ends)), sock=there)
    try:
        yield came
    finally:
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_comes_from_the_port_of_the_one_to_the_relay(run: Run, host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")

    async def main() -> None:
        async with relay(host) as port:
            one, other = await connected(host, port, 5.0), await connected(host, port, 5.0)
            async with listening(other) as came:
                ours = await punched(one, host, port_of(other), 1)
                theirs = await came.get()
            assert ours is not None
            assert port_of(ours) == port_of(one) == theirs.writer.get_extra_info("peername")[1]
            ours.send(b"to them")
            theirs.send(b"to us")
            assert await theirs.reader.readexactly(7) == b"to them"
            assert await ours.reader.readexactly(5) == b"to us"
            one.send(b"and the relay is still there")
            for stream in (one, other, ours, theirs):
                stream.abort()

    run(main())


def test_a_refused_attempt_is_made_again(run: Run) -> None:
    async def main() -> None:
        async with relay("127.0.0.1") as port:
            one, other = await connected("127.0.0.1", port, 5.0), await connected("127.0.0.1", port, 5.0)
            early = asyncio.create_task(punched(one, "127.0.0.1", port_of(other), 10**6))
            for _ in range(60):  # time for some refused attempts
                await asyncio.sleep(0)
            assert not early.done()
            async with listening(other) as came:
                ours, theirs = await early, await came.get()
            assert ours is not None
            for stream in (one, other, ours, theirs):
                stream.abort()

    run(main())


def test_each_attempt_opens_one_socket(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[tuple[Any, ...]]()
    monkeypatch.setattr(punch, "reusable", lambda *where: opened.append(where) or reusable(*where))

    async def main() -> None:
        async with relay("127.0.0.1") as port:
            one = await connected("127.0.0.1", port, 5.0)
            opened.clear()
            assert await punched(one, "127.0.0.1", _free_port(), 4) is None
            one.abort()

    run(main())
    assert len(opened) == 4


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_ends_of_different_families_are_not_tried(run: Run) -> None:
    async def main() -> None:
        async with relay("127.0.0.1") as port:
            one = await connected("127.0.0.1", port, 5.0)
            with pytest.raises(PartnerLost, match="different versions of IP"):
                await punched(one, "::1", 4810, 1)
            one.abort()

    run(main())


def test_a_relay_that_does_not_listen_is_named(run: Run) -> None:
    async def main() -> None:
        port = _free_port()
        with pytest.raises(PartnerLost, match=f"127.0.0.1:{port}: Connection refused"):
            await connected("127.0.0.1", port, 5.0)

    run(main())


def test_a_relay_that_does_not_answer_is_given_up_in_time(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]  # so that its line is full
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            with pytest.raises(PartnerLost, match="did not answer within 0 s"):
                await connected("127.0.0.1", port, 0.2)
            for one in waiting:
                one.close()

    run(main())
