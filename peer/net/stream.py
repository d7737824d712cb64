"""Payload streams, the same from both ends: OPEN each way first, then chunks paced by both caps, then the digest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import DecodeError

from peer.errors import BadPayload, PartnerLost, PartnerSilent
from peer.net.ratelimit import ChunkSize, Pacer, whole_grains
from peer.protocol.diagnosis import believed
from peer.protocol.frames import (
    MAX_CHUNK,
    USUAL_CHUNK,
    Kind,
    PayloadReader,
    PayloadWriter,
    largest_for,
    pack,
    unpack,
)
from peer.protocol.messages import RoundKey, Sink, Source, SwapReport, Told
from peer.v1 import exchange_pb2 as pb

Read = Callable[[], Awaitable[bytes | None]]
Write = Callable[[bytes], Awaitable[None]]
STALL_S = 5.0
"""Between two frames of a payload. Chunks are cut to a hundredth of a second at the slower cap, and to less than half a
second of what the line bears, so this is a sender that stopped, not one that is slow."""


class Budget(Protocol):
    """How much may be sent in a day and a month."""

    def why_not_give(self) -> str:
        """Why no state is given now, for a person; empty: it may be."""

    def claim(self, payload: int, chunks: int, *, giving: bool) -> AbstractContextManager[Callable[[int], None]]:
        """Around the sending of a payload; gives what is told the bytes of each chunk that went. `giving`: it is a part
        of a state. Raises PartnerRefused (`budget`) before anything is sent."""


class NoBudget(Budget):
    """Everything may be sent."""

    def why_not_give(self) -> str:
        return ""

    def claim(self, payload: int, chunks: int, *, giving: bool) -> AbstractContextManager[Callable[[int], None]]:
        return nullcontext(lambda nbytes: None)


@dataclass
class Meter:
    """Payload frames of all transfers, both ways, in bytes."""

    sent: int = 0
    received: int = 0
    exchanging: int = 0
    """Payloads of training's own exchanges that are being sent at the moment."""
    budget: Budget = field(default_factory=NoBudget)


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
    write: Write,
    source: Source,
    caps: Caps,
    others_rate: float,
    behind: Behind | None = None,
    largest: int = USUAL_CHUNK,
) -> int:
    """Chunks of at most `largest` bytes and END, at the slower of our upload cap and what the other is willing to
    receive; the bytes sent. `behind`: asked before each chunk; None: this is an exchange of training itself. Raises
    PartnerRefused (`budget`) where the volunteer's upload budget does not hold it; then nothing was sent."""
    caps.meter.exchanging += behind is None
    try:
        return await _send_payload(write, source, caps, others_rate, behind, largest)
    finally:
        caps.meter.exchanging -= behind is None


async def _send_payload(
    write: Write, source: Source, caps: Caps, others_rate: float, behind: Behind | None, largest: int
) -> int:
    theirs = Pacer(others_rate if others_rate > 0 else None)
    rates = [pacer.rate for pacer in (caps.up, theirs) if pacer.rate is not None]
    size = ChunkSize(min(rates) if rates else None, largest)
    writer, line, offset = PayloadWriter(), _Line(write, caps.meter, size), 0
    frames = -(-source.nbytes // size.least) + 1
    with caps.meter.budget.claim(source.nbytes, frames, giving=behind is not None) as sent:
        try:
            while offset < source.nbytes:
                data = source.read(offset, min(whole_grains(size.next, source.grain), source.nbytes - offset))
                frame = writer.chunk(data)
                await theirs.take(len(frame))
                if behind is not None:
                    await behind.take(len(frame))
                await caps.up.take(len(frame))
                await line.free()
                sent(len(data))  # a write that is cut off may have gone out
                line.begin(frame)
                offset += len(data)
            await line.free()
        finally:
            await line.close()
        sent(0)
        await write(writer.end())
    return source.nbytes


class _Line:
    """One frame on its way, while the next is made."""

    def __init__(self, write: Write, meter: Meter, size: ChunkSize) -> None:
        self._write = write
        self._meter = meter
        self._size = size
        self._writing: asyncio.Task[None] | None = None

    def begin(self, frame: bytes) -> None:
        assert self._writing is None, "one at a time"
        self._writing = asyncio.create_task(self._count(frame))

    async def _count(self, frame: bytes) -> None:
        began = time.monotonic()
        await self._write(frame)
        self._size.took(time.monotonic() - began)
        self._meter.sent += len(frame)

    async def free(self) -> None:
        """When the last one has gone. Raises what went wrong with it."""
        if self._writing is not None:
            await self._writing
            self._writing = None
        await asyncio.sleep(0)

    async def close(self) -> None:
        """What is on its way is given up."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})
            if not self._writing.cancelled():
                self._writing.exception()  # raised by whoever waited for it, or nobody wants to know any more


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
            max_chunk=MAX_CHUNK,
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


async def _send(write: Write, terms: Terms, caps: Caps, theirs: pb.SwapOpen) -> None:
    await send_payload(write, terms.source, caps, theirs.max_rate, largest=largest_for(theirs.max_chunk))


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

    sending = asyncio.create_task(_send(counted, terms, caps, theirs))
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
