"""Transfers of payloads on one stream. Both ends first send OPEN; then come chunks, paced by the caps of both, and
finally the digest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from peer.aio.tasks import cancel_and_wait
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.protocol.diagnosis.analysis import believed
from peer.protocol.messages import PeerTimings, RoundKey, SwapReport
from peer.protocol.wire.frames import MAX_CHUNK, USUAL_CHUNK, Kind, PayloadReader, PayloadWriter, largest_for, pack
from peer.protocol.wire.payload import Sink, Source
from peer.transport.wire.pacing import ChunkSize, Pacer, whole_grains
from peer.transport.wire.resumption import TransferProgress
from peer.transport.wire.striping import Read, Stripes, Write
from peer.transport.wire.validation import open_of
from peer.v1 import exchange_pb2 as pb

SKIM = 2**20
"""Bytes hashed at a time when skipping what the receiver already has."""
STALL_S = 5.0
"""Longest time between two frames of a payload, in seconds.

Chunks are small, so that a slow sender still sends one in this time. A longer pause means that the sender stopped."""


class UploadBudget(Protocol):
    """Quota of bytes sent per day and per month."""

    def refusal_reason(self, *, stranger: bool = False) -> str:
        """Return why no state may be sent now, for a person; empty: it may. `stranger`: whether the receiver is a
        stranger."""

    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Reserve quota for sending a payload during the block. The block reports the bytes of each chunk sent to the
        yielded function; the rest of the reservation is returned.

        `giving`: the payload is part of a state. `stranger`: it goes to a stranger, who sends nothing in return. Raises
        PartnerRefused (`budget`) before anything is sent."""


class NoBudget(UploadBudget):
    """An unlimited quota."""

    def refusal_reason(self, *, stranger: bool = False) -> str:
        return ""

    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> AbstractContextManager[Callable[[int], None]]:
        return nullcontext(lambda nbytes: None)


@dataclass
class Meter:
    """Counts the payload bytes of all transfers, in both directions."""

    sent: int = 0
    received: int = 0
    exchanging: int = 0
    """Number of payloads of training's own exchanges that are being sent."""
    budget: UploadBudget = field(default_factory=NoBudget)

    def count_sent(self, nbytes: int) -> None:
        self.sent += nbytes

    def count_received(self, nbytes: int) -> None:
        self.received += nbytes

    @contextmanager
    def sending_exchange(self) -> Iterator[None]:
        """Count a payload of training's own exchanges as being sent during the block."""
        self.exchanging += 1
        try:
            yield
        finally:
            self.exchanging -= 1


@dataclass(frozen=True, slots=True)
class Caps:
    """Our own bandwidth caps, and the meter."""

    up: Pacer
    down: Pacer
    meter: Meter


class Throttle(Protocol):
    """A limit, in addition to the caps, on transfers to peers that send nothing in return."""

    @property
    def stranger(self) -> bool:
        """Whether the receiver is a stranger."""

    @property
    def yields(self) -> bool:
        """Whether the transfer gives way to training's own exchanges, as those of state do."""

    async def wait_turn(self, nbytes: int) -> None: ...


async def send_payload(
    write: Write,
    source: Source,
    caps: Caps,
    others_rate: float,
    behind: Throttle | None = None,
    largest: int = USUAL_CHUNK,
    writer: PayloadWriter | None = None,
    have: int = 0,
) -> None:
    """Send chunks of at most `largest` bytes, then END, at the lower of our upload cap and the receiver's cap.

    `others_rate`: the receiver's cap in bytes per second; 0: none. `behind` is awaited before each chunk; None: the
    payload belongs to an exchange of training. `have`: number of bytes that the receiver already has, which `writer`
    produced.

    Raises PartnerRefused (`budget`) before anything is sent when the volunteer's quota is too small."""
    with nullcontext() if behind is not None and behind.yields else caps.meter.sending_exchange():
        await _send_payload(write, source, caps, others_rate, behind, largest, writer or PayloadWriter(), have)


async def _send_payload(
    write: Write,
    source: Source,
    caps: Caps,
    others_rate: float,
    behind: Throttle | None,
    largest: int,
    writer: PayloadWriter,
    have: int,
) -> None:
    theirs = Pacer(others_rate if others_rate > 0 else None)
    rates = [pacer.rate for pacer in (caps.up, theirs) if pacer.rate is not None]
    size = ChunkSize(min(rates) if rates else None, min(largest, source.most))
    line, left = _Line(write, caps.meter, size), source.nbytes - have
    frames = -(-left // size.least) + 1
    giving, stranger = behind is not None and behind.yields, behind is not None and behind.stranger
    with caps.meter.budget.claim(left, frames, giving=giving, stranger=stranger) as sent:
        await _seek(writer, source, have)
        try:
            while (offset := writer.offset) < source.nbytes:
                end = min(whole_grains(offset, size.next, source.grain), source.nbytes)
                data = source.read(offset, end - offset)
                frame = writer.chunk(data)
                await theirs.wait_turn(len(frame))
                if behind is not None:
                    await behind.wait_turn(len(frame))
                await caps.up.wait_turn(len(frame))
                await line.free()
                sent(len(data))  # counted before the write, because a cancelled write may have been sent
                line.begin(frame)
            await line.free()
        finally:
            await line.close()
        sent(0)
        await write(writer.end())


async def _seek(writer: PayloadWriter, source: Source, have: int) -> None:
    """Move the writer to the first byte that the receiver lacks."""
    if writer.reaches(have):
        writer.go_back(have)
    while writer.offset < have:
        writer.skip(source.read(writer.offset, min(SKIM, have - writer.offset)))
        await asyncio.sleep(0)


class _Line:
    """Sends one frame while the next is being prepared."""

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
        self._meter.count_sent(len(frame))

    async def free(self) -> None:
        """Wait until the last frame is sent. Raises the error of its write."""
        if self._writing is not None:
            await self._writing
            self._writing = None
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel the frame that is being sent."""
        if self._writing is not None:
            await cancel_and_wait(self._writing)


async def receive_payload(read: Read, sink: Sink, caps: Caps, reader: PayloadReader | None = None) -> None:
    """Fill `sink`. Return when the payload is complete and verified. `reader`: state from earlier streams.

    Raises BadPayload, PartnerLost when the stream ends too early, or PartnerSilent when it stalls."""
    reader = reader or PayloadReader(sink.nbytes)
    while not reader.over:
        raw = await _next_frame(read)
        if raw is None:
            raise PartnerLost("the stream ended in the middle")
        await caps.down.wait_turn(len(raw))
        frame = reader.take(raw)
        if frame.kind is Kind.CHUNK:  # no await between `take` and `write`: bytes counted as received are in the sink
            caps.meter.count_received(len(raw))
            sink.write(frame.offset, frame.body)
        await asyncio.sleep(0)


async def _next_frame(read: Read) -> bytes | None:
    """Read the next frame. Raises PartnerSilent after `STALL_S`."""
    try:
        async with asyncio.timeout(STALL_S):
            return await read()
    except TimeoutError:
        raise PartnerSilent(f"nothing came for {STALL_S:.0f} s in the middle of a payload", Code.SILENT) from None


async def read_open(read: Read) -> pb.SwapOpen:
    """Read the first frame of a stream. Raises BadPayload or PartnerLost."""
    raw = await read()
    if raw is None:
        raise PartnerLost("the stream ended before it began")
    return open_of(raw)


@dataclass(frozen=True, slots=True)
class SwapTerms:
    """What one side brings to a swap: its payload, and where the partner's goes."""

    key: RoundKey
    codec: str
    source: Source
    sink: Sink
    timings: PeerTimings | None = None
    """Our timings, which are sent to the partner."""

    def opening(self, caps: Caps, progress: TransferProgress | None = None, stripes: int = 0) -> bytes:
        """Encode our OPEN frame. `stripes`: number of simultaneous streams that we accept."""
        body = pb.SwapOpen(
            round=self.key.round,
            fragment=self.key.fragment,
            part=self.key.part,
            codec=self.codec,
            nbytes=self.source.nbytes,
            max_rate=caps.down.rate or 0.0,
            max_chunk=MAX_CHUNK,
            stripes=stripes,
        )
        if progress is not None:
            body.swap, body.have = progress.number, progress.reader.received
        if (timings := self.timings) is not None:
            body.ready, body.worked, body.rate_out, body.rate_in = (
                timings.ready,
                timings.worked,
                timings.rate_out,
                timings.rate_in,
            )
            body.tokens = timings.tokens
        return pack(Kind.OPEN, 0, body.SerializeToString())

    def stripe(self, number: int, progress: TransferProgress) -> bytes:
        """Encode the first frame of an additional stream of a swap."""
        key = self.key
        body = pb.SwapOpen(round=key.round, fragment=key.fragment, part=key.part, swap=progress.number, stripe=number)
        return pack(Kind.OPEN, 0, body.SerializeToString())

    def check(self, theirs: pb.SwapOpen) -> None:
        """Check that the partner's OPEN has the same round, fragment, codec and length. Raises BadPayload."""
        if RoundKey(theirs.round, theirs.fragment, theirs.part) != self.key:
            raise BadPayload(Code.ROUND, f"round {theirs.round}.{theirs.fragment}.{theirs.part} is not {self.key}")
        if theirs.codec != self.codec:
            raise BadPayload(Code.CODEC, f"codec {theirs.codec[:16]!r}, the run uses {self.codec}")
        if theirs.nbytes != self.sink.nbytes:
            raise BadPayload(Code.LENGTH, f"{theirs.nbytes} bytes announced, {self.sink.nbytes} are due")
        if not 0 <= theirs.max_rate < 1e15:
            raise BadPayload(Code.FRAME, "an impossible rate")


async def _send(write: Write, terms: SwapTerms, caps: Caps, theirs: pb.SwapOpen, writer: PayloadWriter) -> None:
    largest = largest_for(theirs.max_chunk)
    await send_payload(write, terms.source, caps, theirs.max_rate, None, largest, writer, theirs.have)


async def swap_payloads(
    read: Read,
    write: Write,
    terms: SwapTerms,
    caps: Caps,
    theirs: pb.SwapOpen | None = None,
    progress: TransferProgress | None = None,
    answered: Callable[[], None] = lambda: None,
    stripes: Stripes | None = None,
) -> SwapReport:
    """Run one side of a swap on one stream.

    - `theirs`: the partner's OPEN, if it was already read.
    - `progress`: state of the transfer over all its streams. If both sides can resume, a broken stream raises
      PartnerLost even if we have received everything.
    - `answered`: called when the partner's OPEN has arrived.
    - `stripes`: the owner of `read` and `write`, for a swap over several streams.

    No chunk is sent until both sides have sent OPEN, so a side that is not ready costs only the wait. The caller bounds
    the total time."""
    progress = progress or TransferProgress(terms.sink.nbytes)
    await write(terms.opening(caps, progress, progress.stripes if stripes is not None else 0))
    theirs = theirs or await read_open(read)
    terms.check(theirs)
    progress.begin_stream(theirs.swap, theirs.have, terms.source.nbytes)
    if stripes is not None and progress.agreed:
        stripes.agree(min(theirs.stripes, progress.stripes))
    timings = PeerTimings(theirs.ready, theirs.worked, theirs.rate_out, theirs.rate_in, theirs.tokens)
    progress.observe_timings(believed(timings, terms.timings))
    answered()
    moved = 0

    async def counted(raw: bytes) -> None:
        nonlocal moved
        await write(raw)
        moved += len(raw)

    async def frame() -> bytes | None:
        progress.is_farewell(raw := await read())
        return raw

    sending = asyncio.create_task(_send(counted, terms, caps, theirs, progress.writer))
    try:
        await receive_payload(frame, terms.sink, caps, progress.reader)
        before = -1
        while not sending.done() and moved > before:  # keep sending: many homes send ten times slower than they receive
            before = moved
            await asyncio.wait({sending}, timeout=STALL_S)
        sent_all = sending.done() and not sending.cancelled() and sending.exception() is None
        if not sent_all and progress.can_resume and not _refused(sending):
            raise PartnerLost("the stream broke before the partner had everything")
        return progress.report(terms.source.nbytes, terms.sink.nbytes, sent_all=sent_all)
    finally:
        await cancel_and_wait(sending)  # its error is dropped: when the connection breaks, reading fails too


def _refused(sending: asyncio.Task[None]) -> bool:
    """Return whether sending failed because our own upload quota is used up."""
    return sending.done() and not sending.cancelled() and isinstance(sending.exception(), PartnerRefused)
