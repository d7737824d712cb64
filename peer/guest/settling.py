"""One condition over time: it is lost at once, and back only when it has held for a while. So nothing flaps."""

from __future__ import annotations

import math

from peer.guest.conditions import ConditionReading

SETTLE_S = 5.0
"""Seconds that a condition holds before training goes on."""


class SettledCondition:
    """Condition that is back after `settle_s` seconds. A fact that is not told counts as fulfilled."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._blocked = False
        self._back_at = 0.0
        self.reading = ConditionReading(None, "not asked yet")

    def update(self, reading: ConditionReading, now: float) -> None:
        """Take what the source says at `now`, in seconds of any clock that only goes forward."""
        if reading.holds is False:
            self._blocked, self._back_at = True, math.inf
        elif self._blocked and self._back_at == math.inf:
            self._back_at = now + self._settle_s
        if now >= self._back_at:
            self._blocked = False
        self.reading = reading

    def block_reason(self, now: float) -> str:
        """Return why nothing may be trained, for a person. Empty: it may."""
        if not self._blocked:
            return ""
        if self._back_at == math.inf:
            return self.reading.why
        return f"{self.reading.why}; goes on when that held for {self._settle_s:.0f} s"

    def settles_in(self, now: float) -> float:
        """Return the seconds until the condition is back. Infinite: nothing is to be waited for."""
        return max(0.0, self._back_at - now) if self._blocked else math.inf
