"""Caps on bytes per second, exact over two seconds.

No burst is saved up: a chunk starts when the one before has used up its time. A late wake-up is made good, by 20 ms
at most, so that a saturated sender loses nothing to the scheduler. Any window of 2 s then holds at most 2 s of the cap,
one chunk and 20 ms more; with chunks of a twentieth of a second that is 3.5 %. (With chunks of a quarter of a second it
would be 13 %.)"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

CREDIT_S = 0.02
QUANTUM_S = 0.05
SMALLEST_CHUNK = 1024
LARGEST_CHUNK = 2**17


def chunk_size(rate: float | None) -> int:
    """Bytes of a chunk at this cap (bytes per second; None: no cap)."""
    if rate is None:
        return LARGEST_CHUNK
    return int(min(max(rate * QUANTUM_S, SMALLEST_CHUNK), LARGEST_CHUNK))


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

    async def take(self, nbytes: int) -> None:
        """Return when `nbytes` may be sent."""
        if self.rate is None:
            return
        async with self._turn:
            if (wait := self._free_at - self._now()) > 0:
                await self._sleep(wait)
            now = self._now()
            start = self._free_at if now - self._free_at <= CREDIT_S else now
            self._free_at = start + nbytes / self.rate
