"""A transfer outlives its connections. When one breaks in the middle, the side that dialled dials again and the other
waits for it; each tells how much it holds, verified, and is sent the rest.

The transfer is named by a number that the dialling side draws: one that comes with another number, or has more than was
sent or far less, is not the one we know. What is not gone on with: refusals, wrong bytes, a partner that does not say
that it goes on (an older one), or that has forgotten the transfer (it was started anew, and refuses).

What happens on failure: it is tried again until the caller's deadline, and then fails as what broke it. Who has
everything waits only `LINGER_S` for one that has not, and is content; so does who fetches a piece of a state, before it
asks another."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from peer.errors import BadPayload, PartnerLost, PartnerSilent
from peer.protocol.messages import PeerTimings, SwapReport
from peer.protocol.wire.frames import Kind, PayloadReader, PayloadWriter, kind_of, pack
from peer.transport.wire.striping import MOST_STRIPES
from peer.transport.wire.validation import open_of
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")
Answered = Callable[[], None]
"""To be called when the other has answered on a new stream."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
MOST_DIALS = 100
"""For one transfer: with pauses of 2 s more than three minutes of a link that is away."""
MOST_STREAMS = 32
"""Of one transfer. Each may cost `REWIND` bytes that are sent again."""
REACH_S = 8.0
"""To connect again, say Hello and have the other's word. A first packet that was lost is sent again after 1, 3, 7 s."""
A_PIECE = 1
"""The number of every transfer of a piece of state: the request says which."""
LINGER_S = 10.0
"""Its trainer may be waiting; a partner that died would cost it the whole deadline, for nothing."""


class TransferProgress:
    """Of one transfer, on one side, over all its streams. `nbytes`: of what is received. `patient`: whether it waits
    for the other as long as it may."""

    def __init__(self, nbytes: int, number: int = 0, *, patient: bool = True) -> None:
        self._patient = patient
        self.number = number
        """Names the transfer; 0: not known yet, or of a partner that does not go on."""
        self.reader = PayloadReader(nbytes)
        self.writer = PayloadWriter()
        self.broken: PartnerLost | None = None
        """Why nothing moves now."""
        self.began = 0.0
        """By `time.monotonic`; 0: it has not."""
        self.told: PeerTimings | None = None
        self.streams = 0
        """On which the other has answered."""
        self.stripes = MOST_STRIPES
        """Streams at once that may carry it."""
        self._until = 0.0
        self.agreed = False
        """Both sides go on."""
        self._they_have = 0

    @classmethod
    def dialling(cls, nbytes: int) -> TransferProgress:
        """A swap."""
        return cls(nbytes, secrets.randbits(63) + 1)

    @classmethod
    def fetching(cls, nbytes: int) -> TransferProgress:
        """A piece of a state: there are other donors."""
        return cls(nbytes, A_PIECE, patient=False)

    def meet(self, number: int, have: int, due: int) -> None:
        """The other's word at the beginning of a stream: its number of the transfer, and how many of the `due` bytes it
        is to get it has. Raises BadPayload for what cannot be, PartnerLost where there is no going on."""
        if have > min(due, self.writer.offset):
            raise BadPayload("have", f"it has {have} bytes, {self.writer.offset} of {due} were sent")
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

    def adopt_number(self, number: int) -> None:
        """Take the number that the dialling side drew, unless the transfer has one."""
        self.number = self.number or number

    def observe_timings(self, timings: PeerTimings | None) -> None:
        """Take note of the timings that the other side sent."""
        self.told = timings

    def stripe_broke(self, *, refused: bool) -> None:
        """Use at most half as many streams from here on, or a single one where the other side refused more."""
        self.stripes = 1 if refused else max(1, self.stripes // 2)

    def breaks(self, error: PartnerLost) -> None:
        """A stream broke, or the other could not be reached."""
        if self.broken is None:
            self._until = time.monotonic() + LINGER_S
        self.broken = error

    @property
    def goes_on(self) -> bool:
        """Whether another stream may finish it."""
        return self.agreed and self.patience_s > 0

    @property
    def patience_s(self) -> float:
        """How long it still makes sense to wait for the other, once it has broken."""
        if self.broken is None or (self._patient and not self.reader.complete):
            return math.inf
        return self._until - time.monotonic()

    def parting(self, *, sent_all: bool) -> bytes:
        """The frame with which the side that dialled takes its leave: content, or (`sent_all` False) for good."""
        body = pb.SwapOpen(swap=self.number if sent_all else 0, have=self.reader.received)
        return pack(Kind.OPEN, 0, body.SerializeToString())

    def heard(self, raw: bytes | None) -> bool:
        """Whether this frame is the other's content parting. Raises BadPayload, and PartnerLost where it goes no
        further."""
        if not self.agreed or raw is None or kind_of(raw) != Kind.OPEN:
            return False
        body = open_of(raw)
        if body.swap == self.number:
            return self.reader.complete and body.have == self.writer.offset
        self.agreed = False
        raise PartnerLost("it goes no further")

    def report(self, sent: int, received: int, *, sent_all: bool) -> SwapReport:
        """Of a payload that is complete."""
        assert self.reader.complete
        seconds = time.monotonic() - self.began
        return SwapReport(sent if sent_all else 0, received, seconds, sent_all, self.told)


async def retry_transfer(
    attempt: Callable[[Answered], Awaitable[T]], progress: TransferProgress, forget: Callable[[], Awaitable[None]]
) -> T:
    """What a try gives, the first or a later one; the caller bounds the time. `forget` drops the connection that
    failed. Raises what the last try raised."""
    pause = FIRST_PAUSE_S
    for number in range(MOST_DIALS):
        met = progress.streams
        error: PartnerLost
        try:
            async with asyncio.timeout(min(REACH_S, progress.patience_s) if number else None) as reaching:
                return await attempt(lambda: reaching.reschedule(None))
        except TimeoutError:
            error = PartnerSilent("it could not be reached again", "silent")
        except PartnerLost as lost:
            error = lost
        progress.breaks(error)
        if not progress.goes_on:
            raise error
        pause = FIRST_PAUSE_S if progress.streams > met else min(2 * pause, LONGEST_PAUSE_S)
        await forget()
        await asyncio.sleep(pause)
    raise error
