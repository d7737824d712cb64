"""Peers that answer a call with HTTP/2 that no server of ours sends: the caller gives them up, and pays little.

gRPC's client takes what a hostile server sends without a front before it. It holds one call to each, and leaves it at
the call's deadline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import ExchangeError
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import Offer, PeerId, PeerRecord, RoundKey, RunId, Status
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.tls import RenewedLeaf
from tests.support.http2_abuse import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PUSH_PROMISE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    literal,
    message,
    resident,
)

RUN = RunId(b"R" * 32)
SERVERS = 8
CALL_S, PLAY_S = 0.7, 1.0
MEMORY = 64.0
"""MiB that eight hostile servers may cost a caller."""
ANSWER = b"\x88" + literal(b"content-type", b"application/grpc")
BOMB = ANSWER + literal(b"x-long", 3900 * b"x", indexed=True) + 4000 * b"\xbe"


def _bomb() -> Iterator[bytes]:
    yield frame(HEADERS, END_HEADERS, 1, BOMB)


def _continued_bomb() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, BOMB)
    while True:
        yield frame(CONTINUATION, 0, 1, 4000 * b"\xbe")


def _continuation() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, ANSWER)
    while True:
        yield frame(CONTINUATION, 0, 1, literal(b"x", 4000 * b"x")) * 3


def _data() -> Iterator[bytes]:
    yield frame(HEADERS, END_HEADERS, 1, ANSWER) + frame(DATA, 0, 1, struct.pack(">BI", 0, 2**31))
    while True:
        yield frame(DATA, 0, 1, 16000 * b"x")


def _messages() -> Iterator[bytes]:
    yield frame(HEADERS, END_HEADERS, 1, ANSWER)
    while True:
        yield frame(DATA, 0, 1, 3000 * message(b""))


def _control() -> Iterator[bytes]:
    while True:
        yield frame(PING, 0, 0, 8 * b"x") * 100
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**20)) * 100
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 100


def _promises() -> Iterator[bytes]:
    while True:
        yield frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2) + BOMB)


def _goaway() -> Iterator[bytes]:
    while True:
        yield frame(GOAWAY, 0, 0, struct.pack(">II", 2**31 - 1, 0) + 500 * b"x")


FLOODS = (_bomb, _continued_bomb, _continuation, _data, _messages, _control, _promises, _goaway)


@contextlib.asynccontextmanager
async def hostile(flood: Callable[[], Iterator[bytes]]) -> AsyncIterator[PeerRecord]:
    """A peer whose server sends this, and never acknowledges the caller's SETTINGS."""
    identity = Identity.generate()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading: asyncio.Task[bytes] | None = None
        try:
            await reader.readexactly(24)
            writer.write(frame(SETTINGS, 0, 0))
            while (header := await reader.readexactly(9))[3] != HEADERS:
                await reader.readexactly(int.from_bytes(header[:3], "big"))
            reading = asyncio.create_task(reader.read())
            for piece in flood():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(max(0.001, len(piece) / 1e6))
        except (OSError, EOFError):
            pass
        finally:
            if reading is not None:
                reading.cancel()
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=RenewedLeaf(identity).context())
    now, port = time.time(), server.sockets[0].getsockname()[1]
    try:
        yield PeerRecord(
            PeerId(identity.peer_id), RUN, (f"127.0.0.1:{port}",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 600
        )
    finally:
        server.close()


async def call_for_a_while(ours: GrpcTransport, record: PeerRecord) -> None:
    until = time.monotonic() + PLAY_S
    while time.monotonic() < until:
        with pytest.raises(ExchangeError):
            await ours.offer(record, Offer(RoundKey(0, 0)), CALL_S)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__.strip("_"))
def test_a_server_that_abuses_http2_costs_its_caller_little(flood: Callable[[], Iterator[bytes]]) -> None:
    async def main() -> None:
        ours = GrpcTransport(Identity.generate(), RUN, RequestHandler(), RunClock().now)
        async with contextlib.AsyncExitStack() as stack:
            records = [await stack.enter_async_context(hostile(flood)) for _ in range(SERVERS)]
            before = resident(os.getpid())
            await asyncio.gather(*(call_for_a_while(ours, record) for record in records))
            assert resident(os.getpid()) <= before + MEMORY
        await ours.close()

    asyncio.run(main())
