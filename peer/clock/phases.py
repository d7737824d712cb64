"""Timer that measures consecutive phases."""

from __future__ import annotations

import time


class PhaseTimer:
    """Seconds that each phase of a start took. `began` is the start of the first phase by `time.monotonic`, by default
    now."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._since = self.began
        self.skipped = 0.0
        """Seconds that `skip` left out."""
        self.took: dict[str, float] = {}
        """Seconds per phase, in order. A phase that comes again adds to its seconds."""

    def end(self, phase: str) -> float:
        """End the current phase under this name, begin the next one, and return the seconds it took."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.took[phase] = self.took.get(phase, 0.0) + seconds
        return seconds

    def skip(self) -> float:
        """End the current phase as none of the program's: leave its seconds out of `took` and `total`, and return
        them."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.skipped += seconds
        return seconds

    @property
    def total(self) -> float:
        """Seconds from the first phase to the end of the last one, without those skipped: the sum of `took`."""
        return self._since - self.began - self.skipped
