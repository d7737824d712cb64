"""Payload streams, the same from both ends: OPEN each way first, then chunks paced by both caps, then the digest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from peer.errors import BadPayload, PartnerLost, PartnerSilent
from peer.net.ratelimit import Pacer, chunk_size
from peer.protocol.diagnosis import believed
from peer.protocol.frames import Kind, PayloadReader, PayloadWriter, pack, unpack
from peer.protocol.messages import RoundKey, Sink, Source, SwapReport, Told
from peer.v1 import exchange_pb2 as pb

Read = Callable[[], Awaitable[bytes | None]]
Write = Callable[[bytes], Awaitable[None]]
STALL_S = 5.0
"""Between two frames of a payload. Chunks are cut to a twentieth of a second at the slower cap, so this is a sender
that stopped, not one that is slow."""


@dataclass
class Meter:
    """Payload frames of all transfers, both ways, in bytes."""

    sent: int = 0
    received: int = 0
    exchanging: int = 0
    """Payloads of training's own exchanges that are being sent at the moment."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The own caps; `meter` counts."""

    up: Pacer
    down: Pacer
    meter: Meter


class Behind(Protocol):
    """What a transfer that stands behind training's own exchanges waits for, besides the caps."""

    async def take(self, nbytes: int) -> None: ...


async def send_payload(
    write: Write, source: Source, caps: Caps, others_rate: float, behind: Behind | None = None
) -> int:
    """Chunks and END, at the slower of our upload cap and what the other is willing to receive; the bytes sent.
    `behind`: asked before each chunk; None: this is an exchange of training itself."""
    caps.meter.exchanging += behind is None
    try:
        return await _send_payload(write, source, caps, others_rate, behind)
    finally:
        caps.meter.exchanging -= behind is None


async def _send_payload(write: Write, source: Source, caps: Caps, others_rate: float, behind: Behind | None) -> int:
    theirs = Pacer(others_rate if others_rate > 0 else None)
    rates = [pacer.rate for pacer in (caps.up, theirs) if pacer.rate is not None]
    size = chunk_size(min(rates) if rates else None)
    writer = PayloadWriter()
    for offset in range(0, source.nbytes, size):
        frame = writer.chunk(source.read(offset, min(size, source.nbytes - offset)))
        await theirs.take(len(frame))
        if behind is not None:
            await behind.take(len(frame))
        await caps.up.take(len(frame))
        await write(frame)
        caps.meter.sent += len(frame)
        await asyncio.sleep(0)
    await write(writer.end())
    return source.nbytes


async def receive_payload(read: Read, sink: Sink, caps: Caps) -> None:
    """Fill `sink`; returns when the payload is complete and verified. Raises BadPayload, PartnerLost when the stream
    ends too early, PartnerSilent when it stops."""
    reader = PayloadReader(sink.nbytes)
    while not reader.complete:
        raw = await _next_frame(read)
        if raw is None:
            raise PartnerLost("the stream ended in the middle")
        frame = reader.take(raw)
        if frame.kind is Kind.CHUNK:
            caps.meter.received += len(raw)
            await caps.down.take(len(raw))
            sink.write(frame.offset, frame.body)
        await asyncio.sleep(0)


async def _next_frame(read: Read) -> bytes | None:
    try:
        async with asyncio.timeout(STALL_S):
            return await read()
    except TimeoutError:
        raise PartnerSilent(f"nothing came for {STALL_S:.0f} s in the middle of a payload", "silent") from None


async def read_open(read: Read) -> pb.SwapOpen:
    """The first frame of a stream. Raises BadPayload or PartnerLost."""
    raw = await read()
    if raw is None:
        raise PartnerLost("the stream ended before it began")
    frame = unpack(raw)
    if frame.kind is not Kind.OPEN:
        raise BadPayload("order", f"{frame.kind.name} where OPEN is due")
    try:
        return pb.SwapOpen.FromString(frame.body)
    except DecodeError:
        raise BadPayload("frame", "the opening message cannot be read") from None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a side brings to a swap."""

    key: RoundKey
    codec: str
    source: Source
    sink: Sink
    told: Told | None = None
    """What the other is told of us."""

    def opening(self, caps: Caps) -> bytes:
        """Our OPEN frame."""
        body = pb.SwapOpen(
            round=self.key.round,
            fragment=self.key.fragment,
            part=self.key.part,
            codec=self.codec,
            nbytes=self.source.nbytes,
            max_rate=caps.down.rate or 0.0,
        )
        if (told := self.told) is not None:
            body.ready, body.worked, body.rate_out, body.rate_in = told.ready, told.worked, told.rate_out, told.rate_in
        return pack(Kind.OPEN, 0, body.SerializeToString())

    def check(self, theirs: pb.SwapOpen) -> None:
        """Raises BadPayload unless the other's OPEN is of the same round, fragment, codec and length."""
        if RoundKey(theirs.round, theirs.fragment, theirs.part) != self.key:
            raise BadPayload("round", f"round {theirs.round}.{theirs.fragment}.{theirs.part} is not {self.key}")
        if theirs.codec != self.codec:
            raise BadPayload("codec", f"codec {theirs.codec[:16]!r}, the run uses {self.codec}")
        if theirs.nbytes != self.sink.nbytes:
            raise BadPayload("length", f"{theirs.nbytes} bytes announced, {self.sink.nbytes} are due")
        if not 0 <= theirs.max_rate < 1e15:
            raise BadPayload("frame", "an impossible rate")


async def swap_payloads(
    read: Read, write: Write, terms: Terms, caps: Caps, theirs: pb.SwapOpen | None = None
) -> SwapReport:
    """One side of a swap. `theirs`: the other's OPEN where it was read already. No chunk moves before both sides have
    opened, so a side that is not ready costs nothing but the wait; the caller's timeout bounds everything."""
    await write(terms.opening(caps))
    theirs = theirs or await read_open(read)
    terms.check(theirs)
    began = time.monotonic()
    moved = 0

    async def counted(frame: bytes) -> None:
        nonlocal moved
        await write(frame)
        moved += len(frame)

    sending = asyncio.create_task(send_payload(counted, terms.source, caps, theirs.max_rate))
    try:
        await receive_payload(read, terms.sink, caps)
        before = -1
        while not sending.done() and moved > before:  # many homes send ten times slower than they receive
            before = moved
            await asyncio.wait({sending}, timeout=STALL_S)
        sent_all = sending.done() and not sending.cancelled() and sending.exception() is None
        seconds = time.monotonic() - began
        told = believed(Told(theirs.ready, theirs.worked, theirs.rate_out, theirs.rate_in), terms.told)
        return SwapReport(terms.source.nbytes if sent_all else 0, terms.sink.nbytes, seconds, sent_all, told)
    finally:
        sending.cancel()
        await asyncio.wait({sending})
        if not sending.cancelled():
            sending.exception()  # a broken connection shows on our reading side as well
