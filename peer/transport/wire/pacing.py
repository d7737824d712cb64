"""Caps on bytes per second that hold over any two seconds.

The pacer saves up no burst: a chunk starts when the last one has used up its time. A late wake-up is made up for by
`CREDIT_S` at most, so that a saturated sender loses little to the scheduler. Any two seconds then hold at most two
seconds' worth of the cap, one chunk, and `CREDIT_S` more. Payloads take `BULK_SHARE` of a cap, which leaves room for
that excess."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from peer.protocol.wire.frames import USUAL_CHUNK

CREDIT_S = 0.02
QUANTUM_S = 0.01
SMALLEST_CHUNK = 2048
"""Bytes. In smaller chunks the headers would take a large part of a low cap."""
FIRST_CHUNK = 2**16
"""Bytes of a chunk while the speed of the line is not known."""
LEAST_CHUNK = 2**14
"""Bytes of a chunk on the slowest line."""
FAST_S, SLOW_S = 0.2, 0.4
"""Seconds. A chunk that took less makes the next one larger, one that took more makes it smaller.

Window updates wait in line behind the chunks of the other direction, so a chunk must not take long."""
STEADY_CHUNK = USUAL_CHUNK
"""Bytes of a chunk up to which both directions of a home's line flow at once. With larger ones they would take
turns."""
NO_RUSH, RUSH = 15e6, 40e6
"""Bytes per second: the fastest line that may be a home's, and the slowest that cannot be one. Faster lines save
processor time with larger chunks."""
BULK_SHARE = 0.985
"""Share of a cap for payloads. Control traffic has the rest, as no pacer holds it back.

If payloads took all of it, heartbeats would queue up on a line that is no faster than the cap."""


def for_bulk(cap: float | None) -> float | None:
    """Return the bytes per second that payloads share under a volunteer's cap (None: no cap)."""
    return None if cap is None else BULK_SHARE * cap


def chunk_size(rate: float | None, largest: int = USUAL_CHUNK) -> int:
    """Return the bytes of a chunk under this cap (bytes per second, None: no cap), at most `largest`."""
    if rate is None:
        return largest
    return int(min(max(rate * QUANTUM_S, SMALLEST_CHUNK), largest))


class ChunkSize:
    """Size of the next chunk, fitted to the caps and to the speed that the line shows."""

    def __init__(self, rate: float | None, largest: int) -> None:
        self._most = chunk_size(rate, largest)
        self._size = min(FIRST_CHUNK, self._most)

    @property
    def next(self) -> int:
        """Most bytes of the next chunk."""
        return self._size

    @property
    def least(self) -> int:
        """Bytes of a chunk on the slowest line."""
        return min(LEAST_CHUNK, self._most)

    def took(self, seconds: float) -> None:
        """Take note how many seconds passed until the line took the next chunk."""
        if seconds > SLOW_S:
            self._size = max(min(self._size, STEADY_CHUNK) // 2, self.least)
        elif self._size >= STEADY_CHUNK:
            if self._size > RUSH * seconds:
                self._size = min(2 * self._size, self._most)
            elif self._size < NO_RUSH * seconds:
                self._size = min(STEADY_CHUNK, self._most)
        elif seconds < FAST_S:
            self._size = min(2 * self._size, self._most, STEADY_CHUNK)


def whole_grains(offset: int, size: int, grain: int) -> int:
    """Return the end of a chunk from `offset` of at most `size` bytes that ends on a multiple of `grain`.

    Where not even one grain fits, the chunk has `size` bytes."""
    end = offset + size
    return end - end % grain if size >= grain else end


class Pacer:
    """Rate limit that all transfers of one direction share, first come first served."""

    def __init__(
        self,
        rate: float | None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        assert rate is None or rate > 0
        self.rate = rate
        self._now = now
        self._sleep = sleep
        self._free_at = float("-inf")
        self._turn = asyncio.Lock()
        self._next = asyncio.Lock()
        """Of those that wait for their turn, one at a time waits here, beside those that go first."""

    async def wait_turn(self, nbytes: int) -> None:
        """Wait until `nbytes` may be sent."""
        if self.rate is None:
            return
        async with self._turn:
            await self.go_first(nbytes)

    async def go_first(self, nbytes: int) -> None:
        """Wait until `nbytes` may be sent, before all but one of those that wait for their turn."""
        if self.rate is None:
            return
        async with self._next:
            if (wait := self._free_at - self._now()) > 0:
                await self._sleep(wait)
            self._free_at = max(self._free_at, self._now() - CREDIT_S) + nbytes / self.rate
