"""Real time, corrected by what Hellos measured and deaf to jumps of the wall clock, and a thread of low priority for
heavy work."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from typing import TypeVar

from peer.clock.monotonic import run_time, to_boottime

T = TypeVar("T")

KEPT_OFFSETS = 9


class RunClock:
    """The `Clock` interface on this machine: the wall clock as it stood when this process started, counted on by a
    clock nobody sets, so that a jump tears no round. The correction is the median of the last offsets to other
    peers: one peer with a wrong clock moves nobody."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=KEPT_OFFSETS)
        self.correction = 0.0

    def now(self) -> float:
        return run_time() + self.correction

    def raw(self, run_time: float) -> float:
        return to_boottime(run_time - self.correction)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def forget_offsets(self) -> None:
        """What was measured before a sleep counts no more; the correction stays until something is measured again."""
        self._offsets.clear()

    def observe(self, offset_s: float) -> None:
        self._offsets.append(offset_s)
        self.correction = statistics.median(self._offsets)


def wall_time() -> float:
    """What the clock on the wall shows, seconds since the epoch: people pause by it."""
    return time.time()
