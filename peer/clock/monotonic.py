"""Time that nobody sets. A machine's wall clock may jump by an hour (a person, NTP, a dead battery); rounds, deadlines
and records must not jump with it. So every process asks the wall clock once, when it starts, and then counts on."""

from __future__ import annotations

import time

_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""Both count the time a machine sleeps: Linux's CLOCK_BOOTTIME, and CLOCK_MONOTONIC on macOS."""


def boottime() -> float:
    """Seconds on a clock that only goes forward. Its zero means nothing, but is the same for all processes of this
    machine: daemon and trainer name moments to each other by it."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


_ZERO = time.time() - boottime()


def run_time() -> float:
    """Seconds since the epoch, as the wall clock told it when this process started, counted on from there."""
    return _ZERO + boottime()


def to_boottime(time_: float) -> float:
    """The same moment, given as `steady_time` tells it, on the clock of `steady`."""
    return time_ - _ZERO
