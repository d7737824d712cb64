"""Real time, corrected by the offsets that Hellos measure and unaffected by jumps of the wall clock."""

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
    """The `Clock` interface on this machine.

    It counts on from the wall clock at the start of the process. Its correction is the median of the last offsets to
    other peers, so that one peer with a wrong clock moves no one."""

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
        """Drop the offsets measured up to a sleep. The correction stays until a new offset is measured."""
        self._offsets.clear()

    def observe(self, offset_s: float) -> None:
        self._offsets.append(offset_s)
        self.correction = statistics.median(self._offsets)


def wall_time() -> float:
    """Return the wall clock, seconds since the epoch. People choose by it when to pause."""
    return time.time()
