"""Payload streams, the same at both ends: OPEN in each direction first, then chunks paced by both caps, then the
digest."""

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
"""Bytes of a payload that are hashed at a time where the other side has them already."""
STALL_S = 5.0
"""Seconds between two frames of a payload, at most.

Chunks are cut so small that even a slow sender keeps to this. A sender that does not has stopped."""


class UploadBudget(Protocol):
    """Quota of bytes sent per day and per month."""

    def refusal_reason(self, *, stranger: bool = False) -> str:
        """Return why no state is given now, to a stranger or to a proven peer, for a person. An empty string means that
        it may be."""

    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Reserve room for a payload around its sending; the block reports the bytes of each chunk that went.

        `giving` marks a part of a state. `stranger`: it goes to one, and brings nothing back. Raises PartnerRefused
        (`budget`) before anything is sent."""


class NoBudget(UploadBudget):
    """Quota without a limit."""

    def refusal_reason(self, *, stranger: bool = False) -> str:
        return ""

    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> AbstractContextManager[Callable[[int], None]]:
        return nullcontext(lambda nbytes: None)


@dataclass
class Meter:
    """Counter of the payload bytes of all transfers, in both directions."""

    sent: int = 0
    received: int = 0
    exchanging: int = 0
    """Payloads of training's own exchanges that are being sent now."""
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
    """Our own caps, and the meter that counts."""

    up: Pacer
    down: Pacer
    meter: Meter


class Throttle(Protocol):
    """Wait, next to the caps, of a transfer that brings nothing back."""

    @property
    def stranger(self) -> bool:
        """Whether it goes to a stranger."""

    @property
    def yields(self) -> bool:
        """Whether training's own exchanges go before it, as before a state."""

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
    """Send chunks of at most `largest` bytes and END, at the slower of our upload cap and the receiver's cap.

    `behind` is asked before each chunk; None marks an exchange of training itself. `have` is the number of bytes that
    the receiver holds already, and `writer` produced those.

    Raises PartnerRefused (`budget`), before anything is sent, where the volunteer's quota does not hold the rest."""
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
                sent(len(data))  # a write that is cut off may have gone out
                line.begin(frame)
            await line.free()
        finally:
            await line.close()
        sent(0)
        await write(writer.end())


async def _seek(writer: PayloadWriter, source: Source, have: int) -> None:
    """Move the writer behind the bytes that the receiver holds."""
    if writer.reaches(have):
        writer.go_back(have)
    while writer.offset < have:
        writer.skip(source.read(writer.offset, min(SKIM, have - writer.offset)))
        await asyncio.sleep(0)


class _Line:
    """Sends one frame while the next is made."""

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
        """Wait until the last frame has gone. Raises the error of its write."""
        if self._writing is not None:
            await self._writing
            self._writing = None
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel the frame that is being sent."""
        if self._writing is not None:
            await cancel_and_wait(self._writing)


async def receive_payload(read: Read, sink: Sink, caps: Caps, reader: PayloadReader | None = None) -> None:
    """Fill `sink`; return when the payload is complete and verified. `reader` has taken the bytes of former streams.

    Raises BadPayload, PartnerLost when the stream ends too early, PartnerSilent when it stops."""
    reader = reader or PayloadReader(sink.nbytes)
    while not reader.over:
        raw = await _next_frame(read)
        if raw is None:
            raise PartnerLost("the stream ended in the middle")
        await caps.down.wait_turn(len(raw))
        frame = reader.take(raw)
        if frame.kind is Kind.CHUNK:  # no await since the frame was taken: all that counts as received is in the sink
            caps.meter.count_received(len(raw))
            sink.write(frame.offset, frame.body)
        await asyncio.sleep(0)


async def _next_frame(read: Read) -> bytes | None:
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
    """Contribution of one side to a swap."""

    key: RoundKey
    codec: str
    source: Source
    sink: Sink
    timings: PeerTimings | None = None
    """Our timings, which the other side is told."""

    def opening(self, caps: Caps, progress: TransferProgress | None = None, stripes: int = 0) -> bytes:
        """Encode our OPEN frame. `stripes` is the number of streams at once that we take."""
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
        """Encode the first frame of one additional stream of a swap."""
        key = self.key
        body = pb.SwapOpen(round=key.round, fragment=key.fragment, part=key.part, swap=progress.number, stripe=number)
        return pack(Kind.OPEN, 0, body.SerializeToString())

    def check(self, theirs: pb.SwapOpen) -> None:
        """Check the other side's OPEN for the same round, fragment, codec and length. Raises BadPayload."""
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

    - `theirs`: the other side's OPEN, where it was read already.
    - `progress`: state of the transfer over all its streams. Where both sides resume, a broken stream raises
      PartnerLost even if we have everything.
    - `answered`: called when the other side has opened.
    - `stripes`: the owner of `read` and `write`, for a swap over several streams.

    No chunk moves until both sides have opened, so a side that is not ready costs only the wait. The caller's timeout
    bounds everything."""
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
        while not sending.done() and moved > before:  # many homes send ten times slower than they receive
            before = moved
            await asyncio.wait({sending}, timeout=STALL_S)
        sent_all = sending.done() and not sending.cancelled() and sending.exception() is None
        if not sent_all and progress.can_resume and not _refused(sending):
            raise PartnerLost("the stream broke before the partner had everything")
        return progress.report(terms.source.nbytes, terms.sink.nbytes, sent_all=sent_all)
    finally:
        await cancel_and_wait(sending)  # a broken connection shows on our reading side as well


def _refused(sending: asyncio.Task[None]) -> bool:
    """Return whether sending ended by our own upload quota."""
    return sending.done() and not sending.cancelled() and isinstance(sending.exception(), PartnerRefused)
