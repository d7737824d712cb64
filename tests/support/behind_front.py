"""A front with a test's own server behind it, and clients that speak HTTP/2 by hand."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

from peer.identity import Identity
from peer.protocol.wire.http2 import ACK, END_HEADERS, HEADERS, PREFACE, SETTINGS
from peer.transport.front.callers import CallerTable, FrontLimits
from peer.transport.front.front import AcceptingFront
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.relay.relay_server import RelayServer
from peer.transport.server.bind import bind
from peer.transport.tls import RenewedLeaf
from tests.support.http2_abuse import anybody

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def frame(kind: int, body: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return one HTTP/2 frame."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


GREETING = PREFACE + frame(SETTINGS)
"""The first bytes of a client: preface and SETTINGS."""
ACKNOWLEDGED = frame(SETTINGS, flags=ACK)
REQUEST = bytes.fromhex("838684")
"""An HPACK header block of a request: POST / with scheme http."""


def request(stream: int) -> bytes:
    """Return the HEADERS frame that opens a stream."""
    return frame(HEADERS, REQUEST, flags=END_HEADERS, stream=stream)


OPEN = GREETING + ACKNOWLEDGED + request(1)
"""Opens stream 1. The part after the greeting is valid only once the server has sent its SETTINGS."""


class Behind:
    """A running front, its caller table, and its port."""

    def __init__(self, front: AcceptingFront, table: CallerTable, port: int) -> None:
        self.front, self.table, self.port = front, table, port

    async def call(self, *, tls: bool = True) -> End:
        """Connect and do the TLS handshake only."""
        secure = {"ssl": anybody(), "server_hostname": "x"} if tls else {}
        return await asyncio.open_connection("127.0.0.1", self.port, **secure)  # type: ignore[arg-type]

    async def greet(self) -> End:
        """Connect, exchange SETTINGS and acknowledge them."""
        reader, writer = await self.call()
        writer.write(GREETING)
        await reader.readexactly(len(frame(SETTINGS)))
        writer.write(ACKNOWLEDGED)
        return reader, writer


def speaking(serve: Serve) -> Serve:
    """Return a server that does the HTTP/2 settings exchange and then continues as `serve`."""

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(SETTINGS))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(len(GREETING) + len(ACKNOWLEDGED))
            await serve(reader, writer)
        writer.close()

    return both


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo everything until the end of the stream."""
    while said := await reader.read(2**16):
        writer.write(said)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def behind(
    serve: Serve | None,
    limits: FrontLimits | None = None,
    *,
    leaf: RenewedLeaf | None = None,
    relay_server: RelayServer | None = None,
) -> AsyncIterator[Behind]:
    """Run a front. `serve`: the server behind it; None: nothing listens there."""
    inside = InnerSocket()
    server = await asyncio.start_unix_server(serve or echo, inside._named)
    inside.seal()
    if serve is None:
        server.close()
        await server.wait_closed()
    table = CallerTable(limits)
    front = AcceptingFront(table, leaf or RenewedLeaf(Identity.generate()), relay_server)
    sockets, port = bind(["127.0.0.1"], 0)
    await front.open(sockets, inside)
    try:
        yield Behind(front, table, port)
    finally:
        if relay_server is not None:
            await relay_server.close()
        await front.close()
        server.close()
        inside.close()
        assert len(table) == 0
        assert not front._sessions


async def until(holds: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    while not holds():
        await asyncio.sleep(0.01)


async def is_over(reader: asyncio.StreamReader) -> bool:
    """Return whether the connection ends without further bytes."""
    try:
        return await reader.read() == b""
    except (ConnectionError, ssl.SSLError):
        return True
