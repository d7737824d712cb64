"""Time that never jumps.

A machine's wall clock may jump by an hour when a person or NTP sets it. Rounds, deadlines and records must not jump
with it. Each process therefore reads the wall clock once at its start and counts on from there."""

from __future__ import annotations

import time

_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""Clock that also counts while the machine sleeps: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS."""


def boottime() -> float:
    """Return seconds on a clock that only goes forward.

    Its zero means nothing, but all processes of one machine share it. Daemon and trainer name moments to each other by
    it."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


_ZERO = time.time() - boottime()


def run_time() -> float:
    """Return seconds since the epoch: the wall clock at the start of this process, counted on from there."""
    return _ZERO + boottime()


def to_boottime(time_: float) -> float:
    """Convert a time from the scale of `run_time` to the scale of `boottime`."""
    return time_ - _ZERO
