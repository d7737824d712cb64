"""Time that never jumps.

The wall clock may jump by an hour when a person or NTP sets it. Rounds, deadlines and records must not jump with it. So
each process reads the wall clock once at its start, and from then on adds the time of a monotonic clock."""

from __future__ import annotations

import time

_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""Monotonic clock that also counts while the machine sleeps: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS."""


def boottime() -> float:
    """Return seconds of a clock that only goes forward, from an arbitrary origin.

    All processes of one machine share this clock. Daemon and trainer exchange times on it."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


_ZERO = time.time() - boottime()


def run_time() -> float:
    """Return seconds since the epoch: the wall clock at the start of this process, plus the monotonic time since
    then."""
    return _ZERO + boottime()


def to_boottime(time_: float) -> float:
    """Convert a time of `run_time` to the same moment of `boottime`."""
    return time_ - _ZERO
