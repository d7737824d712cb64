"""Enforces caps on bytes per second, over any two seconds.

The pacer accumulates no burst: a chunk starts when the time of the previous chunk is over. A late wake-up is
compensated by at most `CREDIT_S`, so that a saturated sender loses little to the scheduler. So in any two seconds at
most the bytes of two seconds and `CREDIT_S` at the cap are sent, and one chunk more. Payloads use `BULK_SHARE` of a
cap, which leaves room for that excess."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from peer.protocol.wire.frames import USUAL_CHUNK

CREDIT_S = 0.02
"""Largest compensation for a late wake-up, in seconds."""
QUANTUM_S = 0.01
"""Seconds that a chunk takes under a cap."""
SMALLEST_CHUNK = 2048
"""Bytes. With smaller chunks, headers would take a large part of a low cap."""
FIRST_CHUNK = 2**16
"""Chunk size in bytes while the speed of the line is unknown."""
LEAST_CHUNK = 2**14
"""Chunk size in bytes on the slowest line."""
FAST_S, SLOW_S = 0.2, 0.4
"""Seconds. A chunk that took less than FAST_S makes the next one larger, one that took more than SLOW_S makes it
smaller.

Window updates queue behind the chunks of the other direction, so chunks must not take long."""
STEADY_CHUNK = USUAL_CHUNK
"""Largest chunk in bytes with which both directions of a home's line flow at the same time. With larger ones they
alternate."""
NO_RUSH, RUSH = 15e6, 40e6
"""Bytes per second: the fastest line that may be a home's, and the slowest that cannot be. On faster lines, larger
chunks save processor time."""
BULK_SHARE = 0.985
"""Share of a cap for payloads. The rest is for control traffic, which is not paced.

With all of it, payloads would delay heartbeats on a line that is no faster than the cap."""


def for_bulk(cap: float | None) -> float | None:
    """Return the part of a cap that payloads may use, in bytes per second. None: no cap."""
    return None if cap is None else BULK_SHARE * cap


def chunk_size(rate: float | None, largest: int = USUAL_CHUNK) -> int:
    """Return the chunk size in bytes for a cap in bytes per second (None: no cap), at most `largest`."""
    if rate is None:
        return largest
    return int(min(max(rate * QUANTUM_S, SMALLEST_CHUNK), largest))


class ChunkSize:
    """Adapts the chunk size to the cap and to the measured speed of the line."""

    def __init__(self, rate: float | None, largest: int) -> None:
        self._most = chunk_size(rate, largest)
        self._size = min(FIRST_CHUNK, self._most)

    @property
    def next(self) -> int:
        """Largest size of the next chunk in bytes."""
        return self._size

    @property
    def least(self) -> int:
        """Chunk size in bytes on the slowest line."""
        return min(LEAST_CHUNK, self._most)

    def took(self, seconds: float) -> None:
        """Record the seconds until the line accepted a chunk, and adapt the size."""
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
    """Return the end of a chunk that starts at `offset`, has at most `size` bytes, and ends on a multiple of `grain`.

    If not even one grain fits, the chunk has `size` bytes."""
    end = offset + size
    return end - end % grain if size >= grain else end


class Pacer:
    """A rate limit that all transfers of one direction share, first come first served. `rate`: bytes per second; None:
    no limit."""

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
        """Held by the transfer that sends next. Callers of `go_first` wait for this lock directly. Callers of
        `wait_turn` first wait for `_turn`, so that at most one of them waits for this lock."""

    async def wait_turn(self, nbytes: int) -> None:
        """Wait until `nbytes` may be sent."""
        if self.rate is None:
            return
        async with self._turn:
            await self.go_first(nbytes)

    async def go_first(self, nbytes: int) -> None:
        """Wait until `nbytes` may be sent, ahead of all but one of the callers of `wait_turn`."""
        if self.rate is None:
            return
        async with self._next:
            if (wait := self._free_at - self._now()) > 0:
                await self._sleep(wait)
            self._free_at = max(self._free_at, self._now() - CREDIT_S) + nbytes / self.rate
