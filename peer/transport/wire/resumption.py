"""Transfers that survive broken connections.

When a connection breaks during a transfer, the dialling side reconnects and the other side waits for it. Each side
sends how many verified bytes it has, and receives the rest.

The dialling side draws a number that identifies the transfer. A stream is rejected if its number differs, or if its
sender claims more bytes than were sent, or far fewer than before.

A transfer is not resumed after a refusal or invalid bytes, nor if the other side does not support resumption, or has
restarted.

On failure: the dialling side retries until the caller's deadline. Then the transfer fails with the error that broke it.
A side that has received everything waits only `LINGER_S` for the other, and then reports success. A joiner that fetches
a piece of state also waits only `LINGER_S`, and then tries another donor."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerSilent
from peer.protocol.messages import PayloadDigests, PeerTimings, SwapReport
from peer.protocol.wire.frames import Kind, PayloadReader, PayloadWriter, kind_of, pack
from peer.transport.wire.striping import MOST_STRIPES
from peer.transport.wire.validation import open_of
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")
Answered = Callable[[], None]
"""Called when the other side has answered on a new stream."""

FIRST_PAUSE_S = 0.2
"""Seconds before the first reconnection."""
LONGEST_PAUSE_S = 2.0
"""Longest pause between two reconnections, in seconds."""
MOST_DIALS = 100
"""Most connection attempts for one transfer. With the longest pauses they cover more than three minutes without a
network."""
MOST_STREAMS = 32
"""Most streams for one transfer. Each may cause `REWIND` bytes to be sent again."""
REACH_S = 8.0
"""Seconds to reconnect, say Hello and read the answer.

TCP retransmits a lost first packet after 1, 3 and 7 s (RFC 6298)."""
A_PIECE = 1
"""Number of every transfer of a piece of state. The request identifies the piece."""
LINGER_S = 10.0
"""Seconds that a side that has received everything waits for the other one.

A longer wait for a partner that died would delay the trainer unnecessarily."""


class TransferProgress:
    """State of one transfer on one side, over all its streams.

    `nbytes`: bytes to receive. `patient`: whether this side waits for the other until the deadline, instead of
    `LINGER_S`."""

    def __init__(self, nbytes: int, number: int = 0, *, patient: bool = True) -> None:
        self._patient = patient
        self.number = number
        """Identifies the transfer. 0: not known yet, or the other side does not support resumption."""
        self.reader = PayloadReader(nbytes)
        self.writer = PayloadWriter()
        self.broken: PartnerLost | None = None
        """Error of the last stream; None while a stream runs."""
        self.began = 0.0
        """Start of the transfer by `time.monotonic`; 0: not started."""
        self.timings: PeerTimings | None = None
        """Timings that the other side sent; None: none."""
        self.streams = 0
        """Number of streams on which the other side has answered."""
        self.stripes = MOST_STRIPES
        """Most simultaneous streams for this transfer."""
        self._until = 0.0
        self.agreed = False
        """Whether both sides support resumption."""
        self._they_have = 0

    @classmethod
    def dialling(cls, nbytes: int) -> TransferProgress:
        """Create the state of a swap on the dialling side."""
        return cls(nbytes, secrets.randbits(63) + 1)

    @classmethod
    def fetching(cls, nbytes: int) -> TransferProgress:
        """Create the state of fetching a piece of state. It is not patient, as there are other donors."""
        return cls(nbytes, A_PIECE, patient=False)

    def begin_stream(self, number: int, have: int, due: int) -> None:
        """Process the other side's opening: its number of the transfer, and how many of `due` bytes it has.

        Raises BadPayload for impossible values, and PartnerLost when the transfer cannot be resumed."""
        if have > min(due, self.writer.offset):
            raise BadPayload(Code.HAVE, f"it has {have} bytes, {self.writer.offset} of {due} were sent")
        self.agreed = number != 0 and number == self.number
        if self.streams and not self.agreed:
            raise PartnerLost("it knows nothing of the swap that broke off")
        if self.streams >= MOST_STREAMS:
            self.agreed = False
            raise PartnerLost(f"the swap broke off {MOST_STREAMS} times")
        if have < self._they_have or not self.writer.reaches(have):
            self.agreed = False
            raise PartnerLost(f"it has {have} bytes: it had {self._they_have}, and {self.writer.offset} were sent")
        self._they_have = have
        self.broken = None
        self.streams += 1
        self.began = self.began or time.monotonic()
        self.reader.go_on()

    def expect(self, nbytes: int) -> None:
        """Set the number of bytes to receive, before the first of them arrives."""
        assert self.reader.received == 0
        self.reader = PayloadReader(nbytes)

    def adopt_number(self, number: int) -> None:
        """Use the number that the dialling side drew, unless the transfer already has one."""
        self.number = self.number or number

    def observe_timings(self, timings: PeerTimings | None) -> None:
        """Store the timings that the other side sent."""
        self.timings = timings

    def stripe_broke(self, *, refused: bool) -> None:
        """After an additional stream broke, halve the number of streams, or use a single one if the other side refused
        it."""
        self.stripes = 1 if refused else max(1, self.stripes // 2)

    def record_break(self, error: PartnerLost) -> None:
        """Record that a stream broke, or that the other side could not be reached."""
        if self.broken is None:
            self._until = time.monotonic() + LINGER_S
        self.broken = error

    @property
    def can_resume(self) -> bool:
        """Whether another stream may still complete the transfer."""
        return self.agreed and self.patience_s > 0

    @property
    def patience_s(self) -> float:
        """Remaining seconds to wait for the other side after a break; infinity: until the caller's deadline."""
        if self.broken is None or (self._patient and not self.reader.complete):
            return math.inf
        return self._until - time.monotonic()

    def farewell(self, *, sent_all: bool) -> bytes:
        """Encode the farewell of the dialling side. `sent_all` False ends the transfer without resumption."""
        body = pb.SwapOpen(swap=self.number if sent_all else 0, have=self.reader.received)
        return pack(Kind.OPEN, 0, body.SerializeToString())

    def is_farewell(self, raw: bytes | None) -> bool:
        """Return whether this frame is the other side's farewell after a complete transfer.

        Raises BadPayload, and PartnerLost when the other side abandons the transfer."""
        if not self.agreed or raw is None or kind_of(raw) != Kind.OPEN:
            return False
        body = open_of(raw)
        if body.swap == self.number:
            return self.reader.complete and body.have == self.writer.offset
        self.agreed = False
        raise PartnerLost("it goes no further")

    def report(self, sent: int, received: int, *, sent_all: bool) -> SwapReport:
        """Create the report of a complete transfer."""
        assert self.reader.complete
        seconds = time.monotonic() - self.began
        digests = PayloadDigests(self.reader.digest, self.writer.digest if sent_all else b"")
        return SwapReport(sent if sent_all else 0, received, seconds, sent_all, self.timings, digests=digests)


async def retry_transfer(
    attempt: Callable[[Answered], Awaitable[T]], progress: TransferProgress, forget: Callable[[], Awaitable[None]]
) -> T:
    """Return the result of the first attempt that succeeds. The caller bounds the time.

    `forget` closes the connection that failed. Raises the error of the last attempt."""
    pause = FIRST_PAUSE_S
    for number in range(MOST_DIALS):
        met = progress.streams
        error: PartnerLost
        try:
            async with asyncio.timeout(min(REACH_S, progress.patience_s) if number else None) as reaching:
                return await attempt(lambda: reaching.reschedule(None))
        except TimeoutError:
            error = PartnerSilent("it could not be reached again", Code.SILENT)
        except PartnerLost as lost:
            error = lost
        progress.record_break(error)
        if not progress.can_resume:
            raise error
        pause = FIRST_PAUSE_S if progress.streams > met else min(2 * pause, LONGEST_PAUSE_S)
        await forget()
        await asyncio.sleep(pause)
    raise error
