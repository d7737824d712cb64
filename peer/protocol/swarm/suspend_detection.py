"""Suspend detection: whether this machine slept, this process stood still, or the clock was set. It compares three
clocks, read at a steady beat. `steady` counts while the machine sleeps, `awake` does not, `wall` is the one that people
see and may set. Rounds use the steady one, so a step of the wall clock moves none. A sleep does, and the rounds that
passed are reported. The module is pure."""

from __future__ import annotations

from dataclasses import dataclass

ASLEEP_S = 5.0
"""A beat that comes so much too late was slept through. A busy machine is late by less."""
STEP_S = 0.5
"""The wall clock has moved against the steady one by so much since the last beat: it was set. Time servers slew
smaller errors away."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Three clocks at one moment, seconds."""

    steady: float
    awake: float
    wall: float


@dataclass(frozen=True, slots=True)
class Slept:
    """A span in which nothing ran here."""

    seconds: float
    suspended_s: float
    """Seconds of these in which the machine slept. In the rest the process was stopped or held up."""

    def __str__(self) -> str:
        what = "asleep" if self.suspended_s >= self.seconds / 2 else "stopped"
        return f"{what} for {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Stepped:
    """The wall clock was set."""

    seconds: float
    """Seconds forward, negative: back."""


class SuspendDetector:
    """Compares successive readings of the clocks to detect suspensions and changes of the wall clock.

    `interval_s`: the expected seconds between two readings. `first`: the reading to begin with."""

    def __init__(self, interval_s: float, first: ClockReading) -> None:
        self._interval_s = interval_s
        self._last_reading = first

    def observe(self, reading: ClockReading) -> list[Slept | Stepped]:
        """Return what happened after the last reading."""
        last, self._last_reading = self._last_reading, reading
        passed, noticed = reading.steady - last.steady, list[Slept | Stepped]()
        if (late := passed - self._interval_s) >= ASLEEP_S:
            suspended = max(0.0, passed - (reading.awake - last.awake))
            noticed.append(Slept(late, min(suspended, late)))
        if abs(step := (reading.wall - last.wall) - passed) >= STEP_S:
            noticed.append(Stepped(step))
        return noticed
