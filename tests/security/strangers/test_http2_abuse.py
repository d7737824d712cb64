"""Strangers use TLS and HTTP/2 against a real server in ways that no gRPC client does. None of it may reach gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

import pytest

from peer.protocol.wire.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from tests.security.strangers.test_idle_sockets import ANSWER_S, RUN, Served, anybody, caller, served
from tests.support.behind_front import ACKNOWLEDGED, GREETING, REQUEST, End, frame, request
from tests.support.hostile_client import HostileCaller

BOMB = b"\x40\x01x\x7f\xbd\x1d" + b"v" * 3900
"""A field of 3.9 kB, to be put into the decoder's table."""
MOST = 2**24
"""Bytes after which a caller that still is not hung up on has got through. The kernel buffers some of them."""


def bomb(number: int) -> bytes:
    """Return the header field, or 4,000 one-byte references to it."""
    block = REQUEST + (b"\xbe" * 4000 if number else BOMB)
    return frame(HEADERS, block, flags=END_HEADERS, stream=2 * number + 1)


ABUSES: dict[str, tuple[bool, Callable[[int], bytes]]] = {
    "a table entry named 4,000 times, SETTINGS not acknowledged": (False, bomb),
    "the same, acknowledged": (True, bomb),
    "CONTINUATION without an end": (
        True,
        lambda n: frame(CONTINUATION if n else HEADERS, b"\x00\x01x\x7e" + b"v" * 126, stream=1),
    ),
    "rapid reset": (True, lambda n: request(2 * n + 1) + frame(RST_STREAM, b"\0\0\0\x08", stream=2 * n + 1)),
    "empty DATA": (True, lambda n: frame(DATA, stream=1) if n else request(1)),
    "DATA in single bytes": (True, lambda n: frame(DATA, b"x", stream=1) if n else request(1)),
    "WINDOW_UPDATE": (True, lambda n: frame(WINDOW_UPDATE, b"\0\0\0\1", stream=1) if n else request(1)),
    "PING": (True, lambda n: frame(PING, bytes(8))),
    "answers to PING": (True, lambda n: frame(PING, bytes(8), flags=ACK)),
    "SETTINGS": (True, lambda n: frame(SETTINGS, bytes(6))),
    "PRIORITY": (True, lambda n: frame(PRIORITY, bytes(5), stream=2 * n + 1)),
    "frames of no kind": (True, lambda n: frame(0x99, b"x" * 100)),
}


async def connect(server: Served) -> End:
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=anybody(), server_hostname="x")


async def greet(server: Served, *, acknowledged: bool) -> End:
    """Exchange SETTINGS with the server, with or without acknowledging its own."""
    reader, writer = await connect(server)
    writer.write(GREETING)
    await reader.readexactly(9)
    if acknowledged:
        writer.write(ACKNOWLEDGED)
    return reader, writer


async def is_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, make: Callable[[int], bytes]) -> bool:
    """Send until the server disconnects. Return whether it did within `MOST` bytes."""

    async def hear() -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while await reader.read(2**16):
                continue

    hearing, sent, number = asyncio.create_task(hear()), 0, 0
    while sent < MOST and not hearing.done():
        said = b"".join(make(number + more) for more in range(200))
        number += 200
        sent += len(said)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            writer.write(said)
            await writer.drain()
        await asyncio.sleep(0)
    ended = hearing.done()
    hearing.cancel()
    writer.transport.abort()
    await asyncio.gather(hearing, return_exceptions=True)
    return ended


@pytest.mark.parametrize(("acknowledged", "make"), ABUSES.values(), ids=ABUSES.keys())
def test_a_stranger_that_abuses_http2_is_hung_up_on(acknowledged: bool, make: Callable[[int], bytes]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), served() as server, caller() as honest:
            for _ in range(3):
                assert await is_ended(*await greet(server, acknowledged=acknowledged), make)
            await honest.hello(server.record(), ANSWER_S)

    asyncio.run(main())


def test_hello_is_served_while_strangers_hold_what_they_may() -> None:
    """Strangers open as many calls as gRPC accepts, keep them idle, and send as much DATA as allowed."""

    async def main() -> None:
        async with asyncio.timeout(60), served() as server, caller() as honest:
            ends = []
            for _ in range(10):
                reader, writer = await greet(server, acknowledged=True)
                writer.write(b"".join(request(2 * n + 1) for n in range(50)))
                writer.write(frame(DATA, bytes(2**14), stream=1) * 5)
                ends.append((reader, writer))
            await honest.hello(server.record(), ANSWER_S)
            for _, writer in ends:
                writer.transport.abort()

    asyncio.run(main())


def test_a_free_key_does_not_change_what_may_be_sent() -> None:
    """The client first proves a key over its connection, then abuses it."""

    async def main() -> None:
        async with asyncio.timeout(60), served() as server:
            front = server.transport._server._front
            assert front is not None
            reader, writer = await greet(server, acknowledged=True)
            (session,) = front._sessions
            assert session.caller is not None
            front._callers.greeted(session.caller.seen_as, server.record().peer_id, proven=True)
            assert await is_ended(reader, writer, lambda n: bomb(n) if n < 2 else frame(CONTINUATION, b"x", stream=1))

    asyncio.run(main())


def test_a_caller_with_a_token_is_served_as_before() -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            served() as server,
            HostileCaller(f"127.0.0.1:{server.port}", server.record().peer_id, RUN) as friend,
        ):
            token = await friend.hello(layout_digest=b"L" * 32)
            for _ in range(100):
                await friend.unary("Amendments", token)

    asyncio.run(main())
