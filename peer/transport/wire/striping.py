"""One swap over several streams. A stream has under way what its window holds and the message that is being read
(`peer.transport.client.connections`), so over a long and fast way it stands still for most of each round trip. Then the
side that dials opens more, each over a connection of its own, for the windows of one connection's streams are not added
up.

Each direction begins on the first stream. Its sender widens it with a STRIPES frame: what follows goes over so many
streams in turn. The receiver reads them in the same turn, so that nothing has to be put in order, and a payload's
frames, its digest and how it goes on after a break are what they are on one stream.

What happens on failure: a stream that breaks, ends or says nothing takes its turn like any other, so the swap breaks,
and goes on (`peer.transport.wire.resumption`) from one stream, with at most half as many later, or no others where the
partner refused one. What was under way goes again: up to `REWIND` bytes, beyond which the swap is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from peer.errors import BadPayload, PartnerLost
from peer.protocol.wire.frames import USUAL_CHUNK, Kind, kind_of, pack, unpack

Read = Callable[[], Awaitable[bytes | None]]
Write = Callable[[bytes], Awaitable[None]]

MOST_STRIPES = 4
WATCH_S, WATCHED = 0.25, 4
"""A rate is that of so many seconds and frames, at least."""
LONG_S = 0.03
"""A shorter round trip is none to fill."""
FULL = 0.5
"""When so much of what the windows hold is under way, they may be what holds it up."""
WIDE = 1e6
"""Bytes per second: a direction that is slower needs one stream, and more of them would queue up on its line."""


class Stripe:
    """One stream, both ways. Next to others a frame is let go before it has gone, and read before it is asked for."""

    def __init__(self, read: Read, write: Write) -> None:
        self._read = read
        self._write = write
        self._reading: asyncio.Task[bytes | None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def get(self) -> bytes | None:
        """The next message; None at the end."""
        if self._reading is None:
            return await self._read()
        await asyncio.wait({self._reading})
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise PartnerLost("a stream of the swap was broken off")
        return reading.result()

    def get_ahead(self) -> None:
        """Begin to read what `get` gives next."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def put(self, frame: bytes) -> None:
        """Begin to send, once the frame before has gone."""
        await self.settle()
        self.begin(frame)

    def begin(self, frame: bytes) -> None:
        assert self._writing is None, "one at a time"
        self._writing = asyncio.ensure_future(self._write(frame))

    async def settle(self) -> None:
        """What was begun has gone. Raises what went wrong with it."""
        if self._writing is None:
            return
        await asyncio.wait({self._writing})
        writing, self._writing = self._writing, None
        if writing.cancelled():
            raise PartnerLost("a stream of the swap was broken off")
        writing.result()

    def give_up(self) -> set[asyncio.Task[Any]]:
        """What is under way, to be waited for: it is cancelled."""
        under_way = {task for task in (self._reading, self._writing) if task is not None}
        for task in under_way:
            task.cancel()
        return under_way


class _Flow:
    """How fast one direction is."""

    def __init__(self) -> None:
        self.rate = 0.0
        """Bytes per second, of late."""
        self._since, self._frames, self._nbytes = time.monotonic(), 0, 0

    def moved(self, nbytes: int) -> None:
        """One frame of so many bytes."""
        self._frames += 1
        self._nbytes += nbytes
        now = time.monotonic()
        if self._frames >= WATCHED and (passed := now - self._since) >= WATCH_S:
            self.rate = self._nbytes / passed
            self._since, self._frames, self._nbytes = now, 0, 0


class Stripes:
    """`read` and `write` of a swap. Of the side that dials: `open_stripe` begins a stream of that number, and tells
    what it has to say first; `round_trip_s` to the other; `usual`: how many streams the last swap took."""

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
        """Those that the other may open, from 1 on."""
        self._open_stripe = open_stripe
        self._round_trip_s = round_trip_s
        self._usual = usual
        self._in = self._out = 1
        self._read_next = self._write_next = 0
        self._most = 1
        self._flow_in, self._flow_out = _Flow(), _Flow()
        self._over = asyncio.Event()

    def agree(self, theirs: int) -> None:
        """The other takes so many streams."""
        self._most = max(1, min(theirs, MOST_STRIPES))
        if self._open_stripe is None:
            self._coming = [asyncio.get_running_loop().create_future() for _ in range(1, self._most)]
        self._grow(min(self._usual, self._most))

    @property
    def count(self) -> int:
        """Streams that stand."""
        return len(self._stripes)

    # -- frames ------------------------------------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        """The next frame; None at the end of a stream. Raises BadPayload, and what a stream raises."""
        while True:
            stripe = await self._stripe(self._read_next % self._in)
            raw = await stripe.get()
            kind = kind_of(raw) if raw is not None else 0
            if raw is None or kind != Kind.STRIPES:
                self._read_next += 1
                if self._in > 1 and kind == Kind.CHUNK:
                    stripe.get_ahead()
                self._flow_in.moved(len(raw or b""))
                self._look()
                return raw
            self._in, self._read_next = self._announced(raw), 0

    async def write(self, frame: bytes) -> None:
        """Returns when the next frame may be given. Raises what a stream raises, sooner or later; with the last frame
        of a payload everything has gone."""
        if kind_of(frame) == Kind.CHUNK:
            if (stripes := self.count) > self._out and self._flow_out.rate >= WIDE:
                await self._put(pack(Kind.STRIPES, stripes, b""))  # meanwhile there may be more
                self._out, self._write_next = stripes, 0
            await self._put(frame)
        else:
            await self._put(frame)
            for stripe in self._stripes:
                await stripe.settle()
        self._flow_out.moved(len(frame))
        self._look()

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
        """Over how many streams it goes on: more than before, so that this is not said for ever."""
        frame = unpack(raw)
        most = self._most if self._open_stripe is None else len(self._stripes)
        if frame.body or not self._in < frame.offset <= most:
            raise BadPayload("stripes", f"{frame.offset} streams are announced after {self._in}, at most {most}")
        return frame.offset

    # -- how many ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Whether the windows are what holds it up."""
        stripes, rate = len(self._stripes), max(self._flow_in.rate, self._flow_out.rate)
        if self._round_trip_s >= LONG_S and rate * self._round_trip_s >= FULL * stripes * USUAL_CHUNK:
            self._grow(min(2 * stripes, self._most))

    def _grow(self, stripes: int) -> None:
        """The side that dials opens more streams."""
        while self._open_stripe is not None and len(self._stripes) < stripes:
            stripe, opening = self._open_stripe(len(self._stripes))
            stripe.begin(opening)
            self._stripes.append(stripe)

    def awaits(self, number: int) -> bool:
        """Whether the other may open the stream of this number."""
        return 0 < number <= len(self._coming) and not self._coming[number - 1].done()

    async def carry(self, number: int, stripe: Stripe) -> None:
        """A stream that the other has opened, until the swap's stream is over."""
        assert self.awaits(number)
        self._coming[number - 1].set_result(stripe)
        while len(self._stripes) <= len(self._coming) and self._coming[len(self._stripes) - 1].done():
            self._stripes.append(self._coming[len(self._stripes) - 1].result())
        await self._over.wait()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Wait for the end of the first stream: the other has read everything."""
        await self._stripes[0].get()

    async def close(self) -> None:
        """What is under way on any stream is given up, all of it before the first wait."""
        self._over.set()
        came = {coming.result() for coming in self._coming if coming.done() and not coming.cancelled()}
        for coming in self._coming:
            coming.cancel()
        under_way = set[asyncio.Task[Any]]().union(*(stripe.give_up() for stripe in {*self._stripes, *came}))
        if under_way:
            await asyncio.wait(under_way)
        for task in under_way:
            if not task.cancelled():
                task.exception()  # of a swap that is over
