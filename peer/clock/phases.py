"""Seconds of one phase after the other."""

from __future__ import annotations

import time


class PhaseTimer:
    """`began`: by `time.monotonic`, when the first phase did; None: now."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._since = self.began
        self.took: dict[str, float] = {}
        """By phase, in order. A phase that comes again adds to its seconds."""

    def end(self, phase: str) -> float:
        """A phase ends, the next one begins; the seconds it took."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.took[phase] = self.took.get(phase, 0.0) + seconds
        return seconds

    @property
    def total(self) -> float:
        """Seconds since the first phase began."""
        return self._since - self.began
