"""Hysteresis for one condition: it is lost at once, and counts as restored only after it has held for some seconds, so
that training does not start and stop repeatedly."""

from __future__ import annotations

import math

from peer.guest.conditions import ConditionReading

SETTLE_S = 5.0
"""Seconds that a condition must hold before training resumes."""


class SettledCondition:
    """One condition over time. After a loss it is restored once it has held for `settle_s` seconds. A reading whose
    `holds` is None counts as fulfilled."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._blocked = False
        self._back_at = 0.0
        self.reading = ConditionReading(None, "not asked yet")

    def update(self, reading: ConditionReading, now: float) -> None:
        """Store a reading made at `now`, in monotonic seconds."""
        if reading.holds is False:
            self._blocked, self._back_at = True, math.inf
        elif self._blocked and self._back_at == math.inf:
            self._back_at = now + self._settle_s
        if now >= self._back_at:
            self._blocked = False
        self.reading = reading

    def block_reason(self, now: float) -> str:
        """Return why this condition forbids training, for a person; empty: it does not."""
        if not self._blocked:
            return ""
        if self._back_at == math.inf:
            return self.reading.why
        return f"{self.reading.why}; goes on when that held for {self._settle_s:.0f} s"

    def settles_in(self, now: float) -> float:
        """Return the seconds until the condition counts as restored; infinity: it was not lost, or its last reading
        does not hold."""
        return max(0.0, self._back_at - now) if self._blocked else math.inf
