"""The swarm's common clock on this machine: monotonic time, corrected by the offsets that Hellos measure."""

from __future__ import annotations

import asyncio
import time

from peer.clock.clock_filter import ClockFilter
from peer.clock.monotonic import run_time, to_boottime


class RunClock:
    """Implementation of `peer.ports.clock.Clock` for a real machine.

    The time is that of `run_time` plus a correction, which `ClockFilter` computes from the offsets to other peers. The
    correction is bounded, see `bound`."""

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
        """Limit the correction to this many seconds, now and in future."""
        self._filter.bound(seconds)
        self.correction = self._filter.within(self.correction)

    def forget_offsets(self) -> None:
        """Drop the offsets that were measured before the machine slept. The correction stays until a new offset is
        measured."""
        self._filter.forget()

    def observe(self, offset_s: float, voice: str = "") -> None:
        self._filter.observe(offset_s, voice)
        if (found := self._filter.correction()) is not None:
            self.correction = found


def wall_time() -> float:
    """Return the wall clock in seconds since the epoch. Only for schedules that people set by it, such as quiet
    hours."""
    return time.time()
