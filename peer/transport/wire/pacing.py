"""Caps on bytes per second, exact over two seconds.

No burst is saved up: a chunk starts when the one before has used up its time. A late wake-up is made good, by 20 ms
at most, so that a saturated sender loses little to the scheduler. Any window of 2 s then holds at most 2 s of the rate,
one chunk and 20 ms more; with chunks of a hundredth of a second that is 1.5 %, which payloads leave of a cap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from peer.protocol.wire.frames import USUAL_CHUNK

CREDIT_S = 0.02
QUANTUM_S = 0.01
SMALLEST_CHUNK = 2048
"""Below it headers would take more than the cap is worth; under 1.6 Mbit/s a chunk takes longer for it."""
FIRST_CHUNK = 2**16
"""While nobody knows how fast the line is."""
LEAST_CHUNK = 2**14
"""However slow it is."""
FAST_S, SLOW_S = 0.2, 0.4
"""A chunk that took less or more calls for larger or smaller ones: what tells that a window is free again waits in line
behind the chunks that go the other way."""
STEADY_CHUNK = USUAL_CHUNK
"""A larger one fills no window while the other way's passes: on lines of homes the two ways would take turns."""
NO_RUSH, RUSH = 15e6, 40e6
"""Bytes per second of a home's line at most, and of what is none: there larger chunks save processor time."""
BULK_SHARE = 0.985
"""Of a cap. The rest is control traffic's, which has connections of its own and waits for no pacer: were bulk to take
all, a line no faster than the cap would queue up heartbeats behind it, more and more of them."""


def for_bulk(cap: float | None) -> float | None:
    """Bytes per second of a volunteer's cap (None: no cap) that payloads share."""
    return None if cap is None else BULK_SHARE * cap


def chunk_size(rate: float | None, largest: int = USUAL_CHUNK) -> int:
    """Bytes of a chunk at this cap (bytes per second; None: no cap), at most `largest`."""
    if rate is None:
        return largest
    return int(min(max(rate * QUANTUM_S, SMALLEST_CHUNK), largest))


class ChunkSize:
    """How large the next chunk is: as the caps have it, and as the line has shown to bear."""

    def __init__(self, rate: float | None, largest: int) -> None:
        self._most = chunk_size(rate, largest)
        self._size = min(FIRST_CHUNK, self._most)

    @property
    def next(self) -> int:
        """Bytes, at most."""
        return self._size

    @property
    def least(self) -> int:
        """However slow the line is."""
        return min(LEAST_CHUNK, self._most)

    def took(self, seconds: float) -> None:
        """The last chunk needed so long until the line took the next one."""
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
    """Where a chunk from `offset` of at most `size` bytes ends so that the next one begins with a whole grain of so
    many bytes; behind `size` bytes where not even one fits."""
    end = offset + size
    return end - end % grain if size >= grain else end


class Pacer:
    """Shared by all transfers of one direction, first come first served."""

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

    async def wait_turn(self, nbytes: int) -> None:
        """Return when `nbytes` may be sent."""
        if self.rate is None:
            return
        async with self._turn:
            if (wait := self._free_at - self._now()) > 0:
                await self._sleep(wait)
            now = self._now()
            self._free_at = max(self._free_at, now - CREDIT_S) + nbytes / self.rate
