"""Swaps over several streams.

A stream has at most its window, and the message being read, in flight (`peer.transport.client.channels`). On a long and
fast path it is therefore idle for most of each round trip. The dialling side then opens additional streams, each over a
connection of its own, because the streams of one connection share its window.

Each direction starts on the first stream. Its sender announces more streams with a STRIPES frame, after which frames go
to the streams in turn. The receiver reads them in the same order, so it never has to reorder frames. The payload's
frames, digest and resumption are the same as on one stream.

On failure: a stream that breaks, ends or stalls breaks the swap when it is that stream's turn. The swap resumes on one
stream (`peer.transport.wire.resumption`) and later uses at most half as many, or only one if the partner refused a
stream. Frames in flight are sent again, up to `REWIND` bytes. Beyond that the swap fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost
from peer.protocol.wire.frames import USUAL_CHUNK, Kind, kind_of, pack, unpack

Read = Callable[[], Awaitable[bytes | None]]
Write = Callable[[bytes], Awaitable[None]]

MOST_STRIPES = 4
"""Most streams of a swap."""
WATCH_S, WATCHED = 0.25, 4
"""Shortest time in seconds, and number of frames, over which a rate is measured."""
LONG_S = 0.03
"""Seconds. With a shorter round trip, one stream suffices to fill the line."""
FULL = 0.5
"""Utilization of the windows from which they are considered the bottleneck."""
WIDE = 1e6
"""Bytes per second. A slower direction needs only one stream; more would only queue on its line."""


class Stripe:
    """One stream in both directions. When it is one of several, writes return early and messages are read ahead."""

    def __init__(self, read: Read, write: Write) -> None:
        self._read = read
        self._write = write
        self._reading: asyncio.Task[bytes | None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def get(self) -> bytes | None:
        """Return the next message, or None at the end."""
        if self._reading is None:
            return await self._read()
        await asyncio.wait({self._reading})
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise PartnerLost("a stream of the swap was broken off")
        return reading.result()

    def get_ahead(self) -> None:
        """Start reading the message that the next `get` returns."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def put(self, frame: bytes) -> None:
        """Wait until the previous frame is sent, then start sending this one."""
        await self.settle()
        self.begin(frame)

    def begin(self, frame: bytes) -> None:
        assert self._writing is None, "one at a time"
        self._writing = asyncio.ensure_future(self._write(frame))

    async def settle(self) -> None:
        """Wait until the current frame is sent. Raises the error of its write."""
        if self._writing is None:
            return
        await asyncio.wait({self._writing})
        writing, self._writing = self._writing, None
        if writing.cancelled():
            raise PartnerLost("a stream of the swap was broken off")
        writing.result()

    def cancel(self) -> set[asyncio.Task[Any]]:
        """Cancel reading and writing. Return the tasks to wait for."""
        under_way = {task for task in (self._reading, self._writing) if task is not None}
        for task in under_way:
            task.cancel()
        return under_way


class _Flow:
    """Measures the rate of one direction."""

    def __init__(self) -> None:
        self.rate = 0.0
        """Rate in the last interval, in bytes per second."""
        self._since, self._frames, self._nbytes = time.monotonic(), 0, 0

    def moved(self, nbytes: int) -> None:
        """Count one frame of `nbytes`."""
        self._frames += 1
        self._nbytes += nbytes
        now = time.monotonic()
        if self._frames >= WATCHED and (passed := now - self._since) >= WATCH_S:
            self.rate = self._nbytes / passed
            self._since, self._frames, self._nbytes = now, 0, 0


class Stripes:
    """Provides the `read` and `write` of a swap, over one stream or several.

    On the dialling side, `open_stripe` opens the additional stream of a number and returns it with its first frame.
    `round_trip_s`: seconds to the partner and back. `usual`: number of streams of the last swap."""

    def __init__(
        self,
        read: Read,
        write: Write,
        open_stripe: Callable[[int], tuple[Stripe, bytes]] | None = None,
        round_trip_s: float = 0.0,
        usual: int = 1,
    ) -> None:
        self._stripes = [Stripe(read, write)]
        self._coming: list[asyncio.Future[Stripe]] = []
        """Streams that the other side may still open, from number 1 on."""
        self._open_stripe = open_stripe
        self._round_trip_s = round_trip_s
        self._usual = usual
        self._in = self._out = 1
        """Number of streams that frames are received from and sent to."""
        self._read_next = self._write_next = 0
        self._most = 1
        self._flow_in, self._flow_out = _Flow(), _Flow()
        self._over = asyncio.Event()

    def agree(self, theirs: int) -> None:
        """Set the number of streams that the other side accepts."""
        self._most = max(1, min(theirs, MOST_STRIPES))
        if self._open_stripe is None:
            self._coming = [asyncio.get_running_loop().create_future() for _ in range(1, self._most)]
        self._grow(min(self._usual, self._most))

    @property
    def count(self) -> int:
        """Number of open streams."""
        return len(self._stripes)

    # -- frames ------------------------------------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        """Read the next frame; None at the end of a stream. Raises BadPayload or an error of a stream."""
        while True:
            stripe = await self._stripe(self._read_next % self._in)
            raw = await stripe.get()
            kind = kind_of(raw) if raw is not None else 0
            if raw is None or kind != Kind.STRIPES:
                self._read_next += 1
                if self._in > 1 and kind == Kind.CHUNK:
                    stripe.get_ahead()
                self._flow_in.moved(len(raw or b""))
                self._adapt()
                return raw
            self._in, self._read_next = self._announced(raw), 0

    async def write(self, frame: bytes) -> None:
        """Send a frame. Return when the next one may be written.

        Errors of a stream may be raised by a later call. After the last frame of a payload has been written, all of it
        is sent."""
        if kind_of(frame) == Kind.CHUNK:
            if (stripes := self.count) > self._out and self._flow_out.rate >= WIDE:
                await self._put(pack(Kind.STRIPES, stripes, b""))  # `count` may grow during this await
                self._out, self._write_next = stripes, 0
            await self._put(frame)
        else:
            await self._put(frame)
            for stripe in self._stripes:
                await stripe.settle()
        self._flow_out.moved(len(frame))
        self._adapt()

    async def _put(self, frame: bytes) -> None:
        stripe = self._stripes[self._write_next % self._out]
        self._write_next += 1
        await stripe.put(frame)
        if self._out == 1:
            await stripe.settle()

    async def _stripe(self, number: int) -> Stripe:
        if number < len(self._stripes):
            return self._stripes[number]
        return await asyncio.shield(self._coming[number - 1])

    def _announced(self, raw: bytes) -> int:
        """Decode the announced number of streams. It must grow, which limits the number of such frames. Raises
        BadPayload."""
        frame = unpack(raw)
        most = self._most if self._open_stripe is None else len(self._stripes)
        if frame.body or not self._in < frame.offset <= most:
            raise BadPayload(Code.STRIPES, f"{frame.offset} streams are announced after {self._in}, at most {most}")
        return frame.offset

    # -- how many ----------------------------------------------------------------------------------------------------

    def _adapt(self) -> None:
        """Open more streams if the windows are the bottleneck."""
        stripes, rate = len(self._stripes), max(self._flow_in.rate, self._flow_out.rate)
        if self._round_trip_s >= LONG_S and rate * self._round_trip_s >= FULL * stripes * USUAL_CHUNK:
            self._grow(min(2 * stripes, self._most))

    def _grow(self, stripes: int) -> None:
        """Open streams on the dialling side until there are `stripes`."""
        while self._open_stripe is not None and len(self._stripes) < stripes:
            stripe, opening = self._open_stripe(len(self._stripes))
            stripe.begin(opening)
            self._stripes.append(stripe)

    def awaits(self, number: int) -> bool:
        """Return whether the other side may open the stream of this number."""
        return 0 < number <= len(self._coming) and not self._coming[number - 1].done()

    async def carry(self, number: int, stripe: Stripe) -> None:
        """Serve a stream that the other side opened, until the swap ends."""
        assert self.awaits(number)
        self._coming[number - 1].set_result(stripe)
        while len(self._stripes) <= len(self._coming) and self._coming[len(self._stripes) - 1].done():
            self._stripes.append(self._coming[len(self._stripes) - 1].result())
        await self._over.wait()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Wait until the first stream ends. The other side has then read everything."""
        await self._stripes[0].get()

    async def close(self) -> None:
        """Cancel reading and writing on all streams, and wait for the tasks. All are cancelled before the first
        wait."""
        self._over.set()
        came = {coming.result() for coming in self._coming if coming.done() and not coming.cancelled()}
        for coming in self._coming:
            coming.cancel()
        under_way = set[asyncio.Task[Any]]().union(*(stripe.cancel() for stripe in {*self._stripes, *came}))
        if under_way:
            await asyncio.wait(under_way)
        for task in under_way:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it
