"""Real time, corrected by the offsets that Hellos measure and unaffected by jumps of the wall clock."""

from __future__ import annotations

import asyncio
import time

from peer.clock.clock_filter import ClockFilter
from peer.clock.monotonic import run_time, to_boottime


class RunClock:
    """The `Clock` interface on this machine.

    It counts on from the wall clock at the start of the process. What corrects it is the middle of what the networks of
    other peers say, within a bound around that count."""

    def __init__(self) -> None:
        self._filter = ClockFilter()
        self.correction = 0.0

    def now(self) -> float:
        return run_time() + self.correction

    def raw(self, run_time: float) -> float:
        return to_boottime(run_time - self.correction)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def bound(self, seconds: float) -> None:
        """Correct by no more than this from here on."""
        self._filter.bound(seconds)
        self.correction = self._filter.within(self.correction)

    def forget_offsets(self) -> None:
        """Drop the offsets measured up to a sleep. The correction stays until a new offset is measured."""
        self._filter.forget()

    def observe(self, offset_s: float, voice: str = "") -> None:
        self._filter.observe(offset_s, voice)
        if (found := self._filter.correction()) is not None:
            self.correction = found


def wall_time() -> float:
    """Return the wall clock, seconds since the epoch. People choose by it when to pause."""
    return time.time()
