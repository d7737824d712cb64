"""Servers that answer calls with HTTP/2 that no server of ours sends, as fast as the line takes it.

    python -m tests.support.hostile_servers COUNT SEED

The program opens COUNT servers on loopback and prints one line of JSON with the peer id and port of each. Each line of
its input is a `Play` in JSON, which all servers follow from then on; the program answers with an empty line. It ends at
the end of its input."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
import sys
import time
from dataclasses import dataclass

from peer.identity import Identity
from peer.transport.tls import RenewedLeaf
from peer.v1 import exchange_pb2 as pb
from tests.support.http2_abuse import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Flood,
    Variant,
    drawn,
    frame,
    literal,
    message,
)

ANSWER = b"\x88" + literal(b"content-type", b"application/grpc")
TRAILERS = literal(b"grpc-status", b"0")
BOMB = ANSWER + literal(b"x-long", 3900 * b"x", indexed=True) + 4000 * b"\xbe"
TINY = 2000 * literal(b"x", b"")
STREAM = 101
"""Stream number in the floods. The servers replace it by that of the call."""


def _answered_bomb(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS, STREAM, BOMB)
    while True:
        yield b""


def _continued_answer(rng: random.Random) -> Flood:
    yield frame(HEADERS, 0, STREAM, BOMB)
    while True:
        yield frame(CONTINUATION, 0, STREAM, 4000 * b"\xbe")


def _continuation_to_the_limit(rng: random.Random) -> Flood:
    """Continue a header block up to the limit that gRPC applies while its SETTINGS are not acknowledged."""
    yield frame(HEADERS, 0, STREAM, ANSWER)
    while True:
        yield frame(CONTINUATION, 0, STREAM, literal(b"x", 4000 * b"x")) * 3


def _tiny_fields(rng: random.Random) -> Flood:
    """Answer with some MB of one-byte header fields, all of which gRPC passes to Python."""
    yield frame(HEADERS, 0, STREAM, ANSWER)
    for _ in range(180):
        yield frame(CONTINUATION, 0, STREAM, TINY)
    yield frame(CONTINUATION, END_HEADERS, STREAM) + frame(DATA, 0, STREAM, message(b""))
    while True:
        yield b""


def _endless_message(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS, STREAM, ANSWER) + frame(DATA, 0, STREAM, struct.pack(">BI", 0, 2**31))
    while True:
        yield frame(DATA, 0, STREAM, 16000 * b"x")


def _empty_messages(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS, STREAM, ANSWER)
    while True:
        yield frame(DATA, 0, STREAM, 3000 * message(b""))


def _control(rng: random.Random) -> Flood:
    while True:
        yield frame(PING, 0, 0, 8 * b"x") * 100
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**20)) * 100
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 100


def _promised_bombs(rng: random.Random) -> Flood:
    while True:
        yield frame(PUSH_PROMISE, END_HEADERS, STREAM, struct.pack(">I", 2) + BOMB)


def _farewells(rng: random.Random) -> Flood:
    while True:
        yield frame(GOAWAY, 0, 0, struct.pack(">II", 2**31 - 1, 0) + 500 * b"x")


def _ended_again(rng: random.Random) -> Flood:
    """End the same call again and again."""
    while True:
        yield frame(HEADERS, END_HEADERS | END_STREAM, STREAM, ANSWER + TRAILERS) * 50
        yield frame(RST_STREAM, 0, STREAM, bytes(4)) * 50


OF_SERVERS = (
    _answered_bomb,
    _continued_answer,
    _continuation_to_the_limit,
    _tiny_fields,
    _endless_message,
    _empty_messages,
    _control,
    _promised_bombs,
    _farewells,
    _ended_again,
)


def variants(count: int, seed: int) -> list[Variant]:
    """Return the variants: the floods of servers, which acknowledge no SETTINGS before they have answered a Hello, then
    `count` floods of clients."""
    return [Variant(flood.__name__.strip("_"), flood, acks=False) for flood in OF_SERVERS] + drawn(seed, count)


@dataclass(frozen=True)
class Play:
    """An order to all servers. `variant`: index in `variants(drawn, seed)`. `proof`: whether the servers answer the
    first Hello, and flood only the next call."""

    variant: int
    drawn: int
    proof: bool


class HostileServer:
    """One server. All servers play the class attribute `variant`."""

    variant: Variant
    proof = False

    def __init__(self, seed: int) -> None:
        self.identity = Identity.generate()
        self._rng = random.Random(seed)
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        variant, greets = self.variant, self.proof
        reading: asyncio.Task[None] | None = None
        try:
            await reader.readexactly(len(PREFACE))
            if variant.greets or greets:
                writer.write(frame(SETTINGS, 0, 0))
            while True:
                kind, stream, _ = await self._frame(reader, writer, acks=variant.acks or greets)
                if kind == HEADERS and greets:
                    await self._greet(reader, writer, stream)
                    greets = False
                elif kind == HEADERS:
                    break
            if variant.reads:
                reading = asyncio.create_task(_discard(reader))
            else:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            for piece in variant.flood(self._rng):
                writer.write(aimed(piece, stream))
                self.sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0 if piece else 0.01)
        except (OSError, EOFError):
            pass
        finally:
            if reading is not None:
                reading.cancel()
            writer.transport.abort()

    async def _frame(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, acks: bool
    ) -> tuple[int, int, bytes]:
        """Read a frame; return its kind, stream and body."""
        header = await reader.readexactly(9)
        body = await reader.readexactly(int.from_bytes(header[:3], "big"))
        if acks and header[3] == SETTINGS and not header[4] & ACK:
            writer.write(frame(SETTINGS, ACK, 0))
        return header[3], int.from_bytes(header[5:], "big"), body

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: int) -> None:
        """Answer a Hello as an honest server does."""
        writer.write(frame(HEADERS, END_HEADERS, stream, ANSWER))
        for step in (
            pb.HelloReply(challenge=pb.HelloChallenge(nonce=bytes(32), clock=time.time())),
            pb.HelloReply(granted=pb.HelloGranted(token=bytes(32))),
        ):
            while not (said := await self._frame(reader, writer, acks=True))[2] or said[0] != DATA:
                continue
            writer.write(frame(DATA, 0, stream, message(step.SerializeToString())))
        writer.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS))


def aimed(piece: bytes, stream: int) -> bytes:
    """Return the frames with their stream number replaced by `stream`. Bytes that are not whole frames are returned
    unchanged."""
    made, pos = bytearray(piece), 0
    while pos + 9 <= len(made):
        if any(made[pos + 5 : pos + 9]):
            made[pos + 5 : pos + 9] = struct.pack(">I", stream)
        pos += 9 + int.from_bytes(made[pos : pos + 3], "big")
    return bytes(made) if pos == len(made) else piece


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        continue


async def main(count: int, seed: int) -> None:
    servers, listening = [HostileServer(seed + number) for number in range(count)], []
    for one in servers:
        context = RenewedLeaf(one.identity).context()
        listening.append(await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=context))
    ports = [server.sockets[0].getsockname()[1] for server in listening]
    print(json.dumps([(one.identity.peer_id, port) for one, port in zip(servers, ports, strict=True)]), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        play = Play(**json.loads(line))
        HostileServer.variant, HostileServer.proof = variants(play.drawn, seed)[play.variant], play.proof
        print(flush=True)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # connections are ended in the middle
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
