"""What was done since a fragment's base."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    steps: int = 0
    skipped: int = 0
    """Steps whose update was left out: their loss is not counted."""
    loss_sum: float = 0.0
    nanoseconds: int = 0

    @property
    def loss(self) -> float:
        """Mean in nats a token; NaN without a step that counts."""
        counted = self.steps - self.skipped
        return self.loss_sum / counted if counted else math.nan

    def stepped(self, loss: float | None, nanoseconds: int) -> Tally:
        missing = loss is None
        return Tally(
            self.steps + 1, self.skipped + missing, self.loss_sum + (loss or 0.0), self.nanoseconds + nanoseconds
        )

    def without(self, part: Tally) -> Tally:
        """What came after `part`."""
        return Tally(
            self.steps - part.steps,
            self.skipped - part.skipped,
            self.loss_sum - part.loss_sum,
            self.nanoseconds - part.nanoseconds,
        )
