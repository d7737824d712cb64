"""Accounts of the work done since each fragment's base."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkTally:
    steps: int = 0
    skipped: int = 0
    """Steps whose update was left out. Their loss is not counted."""
    loss_sum: float = 0.0
    nanoseconds: int = 0

    @property
    def loss(self) -> float:
        """Mean loss in nats per token; NaN without a step that counts."""
        counted = self.steps - self.skipped
        return self.loss_sum / counted if counted else math.nan

    def plus(self, part: WorkTally) -> WorkTally:
        return WorkTally(
            self.steps + part.steps,
            self.skipped + part.skipped,
            self.loss_sum + part.loss_sum,
            self.nanoseconds + part.nanoseconds,
        )

    def without(self, part: WorkTally) -> WorkTally:
        """Return the work that came after `part`."""
        return WorkTally(
            self.steps - part.steps,
            self.skipped - part.skipped,
            self.loss_sum - part.loss_sum,
            self.nanoseconds - part.nanoseconds,
        )


RECENT = 9
"""Last steps that the expected time of the next one is made from."""


@dataclass(slots=True)
class StepPace:
    """Seconds that an inner step takes here: the median of the last few.

    A step that another program held up thus changes little."""

    steps: int = 0
    """Steps of this process."""
    step_s: float = 0.0
    """Seconds; 0 until the first step."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def longest_s(self) -> float:
        """Seconds that the longest of the last few took; NaN before the first step."""
        return max(self._recent, default=math.nan)

    def record(self, seconds: float) -> None:
        self.steps += 1
        self._recent.append(seconds)
        self.step_s = statistics.median(self._recent)


@dataclass(frozen=True, slots=True)
class _SnapshotMark:
    """Snapshot whose result may still come."""

    tokens: int
    steps: int
    """Steps of this process until the snapshot."""
    tally: WorkTally
    """Work between the fragment's base and the snapshot."""


class WorkAccount:
    """Tallies of all fragments, and the last two snapshots of each.

    A result may come when the next snapshot has been taken already, but not later. Snapshots are named by the trainer's
    token count."""

    def __init__(self, fragments: int) -> None:
        self.tallies = [WorkTally()] * fragments
        """Work since the base, per fragment."""
        self.steps = 0
        """Steps of this process."""
        self.since_snapshot = 0
        """Steps since the last snapshot of any fragment."""
        self._snapshots: list[deque[_SnapshotMark]] = [deque(maxlen=2) for _ in range(fragments)]

    def resume(self, since_snapshot: int, tallies: Sequence[WorkTally]) -> None:
        """Continue from a save. The bases stay, and no result of an older snapshot can still come."""
        assert len(tallies) == len(self.tallies), (len(tallies), len(self.tallies))
        self.tallies, self.since_snapshot = list(tallies), since_snapshot

    def add_work(self, done: WorkTally) -> None:
        self.tallies = [tally.plus(done) for tally in self.tallies]
        self.steps += done.steps
        self.since_snapshot += done.steps

    def snapshot(self, fragment: int, tokens: int) -> WorkTally:
        """Take a snapshot; return the work since the fragment's base."""
        tally = self.tallies[fragment]
        self._snapshots[fragment].append(_SnapshotMark(tokens, self.steps, tally))
        self.since_snapshot = 0
        return tally

    def steps_since(self, fragment: int, tokens: int) -> int:
        """Return the steps since this snapshot."""
        return self.steps - self._find(fragment, tokens).steps

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make this snapshot the fragment's base, and drop older ones."""
        base = self._find(fragment, tokens)
        self.tallies[fragment] = self.tallies[fragment].without(base.tally)
        later = [taken for taken in self._snapshots[fragment] if taken.tokens > tokens]
        self._snapshots[fragment].clear()
        self._snapshots[fragment].extend(_SnapshotMark(t.tokens, t.steps, t.tally.without(base.tally)) for t in later)

    def cover(self, fragment: int, tokens: int) -> None:
        """Make this token count the fragment's base, be it that of a snapshot or not."""
        if any(taken.tokens == tokens for taken in self._snapshots[fragment]):
            self.rebase(fragment, tokens)
        else:
            self.tallies[fragment] = WorkTally()
            self._snapshots[fragment].clear()

    def _find(self, fragment: int, tokens: int) -> _SnapshotMark:
        found = [taken for taken in self._snapshots[fragment] if taken.tokens == tokens]
        assert found, f"what is applied comes from a snapshot of fragment {fragment}, but none was taken at {tokens}"
        return found[-1]


def smoothed(average: float, value: float) -> float:
    """Return an average that the last values count most for. `average`: before `value`; 0: there was none."""
    return value if average == 0.0 else 0.8 * average + 0.2 * value
