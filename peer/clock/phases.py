"""Timer of consecutive phases of a start."""

from __future__ import annotations

import time


class PhaseTimer:
    """Measures how many seconds each phase of a start takes. `began`: start of the first phase by `time.monotonic`;
    default: now."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._since = self.began
        self.skipped = 0.0
        """Seconds that `skip` excluded."""
        self.took: dict[str, float] = {}
        """Seconds per phase, in order. If a phase occurs again, its seconds are added."""

    def end(self, phase: str) -> float:
        """End the current phase, record it under this name, and start the next one. Return the seconds that it took."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.took[phase] = self.took.get(phase, 0.0) + seconds
        return seconds

    def skip(self) -> float:
        """Exclude the time since the last phase from `took` and `total`, for example while a person answers a question.
        Return the seconds."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.skipped += seconds
        return seconds

    @property
    def total(self) -> float:
        """Seconds from the start to the end of the last phase without the skipped ones: the sum of `took`."""
        return self._since - self.began - self.skipped
