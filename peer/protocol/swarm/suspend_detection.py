"""Suspend detection: whether the machine slept, the process was stopped, or the wall clock was set.

It compares three clocks at regular intervals. `steady` counts while the machine sleeps, `awake` does not, and `wall` is
the one that people see and may set. Rounds use the steady clock, so setting the wall clock does not affect them. A
sleep of the machine does affect them, and the rounds that passed meanwhile are reported. The module is pure."""

from __future__ import annotations

from dataclasses import dataclass

ASLEEP_S = 5.0
"""A reading that comes this many seconds too late means a suspension. A busy machine is late by less."""
STEP_S = 0.5
"""If wall and steady clock moved apart by this many seconds since the last reading, the wall clock was set. Time
servers correct smaller errors gradually."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The three clocks at one moment, in seconds."""

    steady: float
    awake: float
    wall: float


@dataclass(frozen=True, slots=True)
class Slept:
    """A period in which this process did not run."""

    seconds: float
    suspended_s: float
    """Seconds of the period in which the machine slept. In the rest the process was stopped or delayed."""

    def __str__(self) -> str:
        what = "asleep" if self.suspended_s >= self.seconds / 2 else "stopped"
        return f"{what} for {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Stepped:
    """A change of the wall clock."""

    seconds: float
    """Seconds forward; negative: back."""


class SuspendDetector:
    """Compares successive clock readings.

    `interval_s`: expected seconds between two readings. `first`: the first reading."""

    def __init__(self, interval_s: float, first: ClockReading) -> None:
        self._interval_s = interval_s
        self._last_reading = first

    def observe(self, reading: ClockReading) -> list[Slept | Stepped]:
        """Return what happened since the last reading."""
        last, self._last_reading = self._last_reading, reading
        passed, noticed = reading.steady - last.steady, list[Slept | Stepped]()
        if (late := passed - self._interval_s) >= ASLEEP_S:
            suspended = max(0.0, passed - (reading.awake - last.awake))
            noticed.append(Slept(late, min(suspended, late)))
        if abs(step := (reading.wall - last.wall) - passed) >= STEP_S:
            noticed.append(Stepped(step))
        return noticed
