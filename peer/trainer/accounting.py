"""Account of the work done since each fragment's base, and the pace of the inner steps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkTally:
    """Sums over some inner steps."""

    steps: int = 0
    skipped: int = 0
    """Steps whose update was left out because loss or gradient were not finite. `loss_sum` leaves them out too."""
    loss_sum: float = 0.0
    """Sum over the steps of the mean loss in nats per token."""
    nanoseconds: int = 0
    """Time in inner steps."""

    @property
    def loss(self) -> float:
        """Mean loss in nats per token. NaN when every step was skipped."""
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
        """Return the difference: the work that is in this tally and not in `part`."""
        return WorkTally(
            self.steps - part.steps,
            self.skipped - part.skipped,
            self.loss_sum - part.loss_sum,
            self.nanoseconds - part.nanoseconds,
        )


RECENT = 9
"""Number of latest steps whose median time is the expected time of the next step."""


@dataclass(slots=True)
class StepPace:
    """Measured time of an inner step: the median of the last `RECENT` steps.

    The median gives little weight to a single step that another program delayed."""

    steps: int = 0
    """Steps made by this process."""
    step_s: float = 0.0
    """Seconds of a usual step. 0 before the first step."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def longest_s(self) -> float:
        """Seconds of the longest of the last `RECENT` steps. NaN before the first step."""
        return max(self._recent, default=math.nan)

    def record(self, seconds: float) -> None:
        self.steps += 1
        self._recent.append(seconds)
        self.step_s = statistics.median(self._recent)


@dataclass(frozen=True, slots=True)
class _SnapshotMark:
    """A snapshot whose result may still arrive."""

    tokens: int
    """Token counter at the snapshot, which names it."""
    steps: int
    """Steps made by this process before the snapshot."""
    tally: WorkTally
    """Work between the fragment's base and the snapshot."""


class WorkAccount:
    """Work of each fragment since its base, and the last two snapshots of each fragment.

    Two snapshots are enough: a result may arrive after the next snapshot of its fragment, but not after the second
    next. A snapshot is named by the token counter at which it was taken."""

    def __init__(self, fragments: int) -> None:
        self.tallies = [WorkTally()] * fragments
        """Per fragment, the work since its base."""
        self.steps = 0
        """Steps made by this process."""
        self.since_snapshot = 0
        """Steps since the last snapshot of any fragment."""
        self._snapshots: list[deque[_SnapshotMark]] = [deque(maxlen=2) for _ in range(fragments)]

    def resume(self, since_snapshot: int, tallies: Sequence[WorkTally]) -> None:
        """Restore the account of a checkpoint. No result of a snapshot before it can still arrive."""
        assert len(tallies) == len(self.tallies), (len(tallies), len(self.tallies))
        self.tallies, self.since_snapshot = list(tallies), since_snapshot

    def add_work(self, done: WorkTally) -> None:
        self.tallies = [tally.plus(done) for tally in self.tallies]
        self.steps += done.steps
        self.since_snapshot += done.steps

    def snapshot(self, fragment: int, tokens: int) -> WorkTally:
        """Record a snapshot at this token count; return the work since the fragment's base."""
        tally = self.tallies[fragment]
        self._snapshots[fragment].append(_SnapshotMark(tokens, self.steps, tally))
        self.since_snapshot = 0
        return tally

    def steps_since(self, fragment: int, tokens: int) -> int:
        """Return how many steps were made since the snapshot at this token count."""
        return self.steps - self._find(fragment, tokens).steps

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make the snapshot at this token count the fragment's base, and forget older snapshots."""
        base = self._find(fragment, tokens)
        self.tallies[fragment] = self.tallies[fragment].without(base.tally)
        later = [taken for taken in self._snapshots[fragment] if taken.tokens > tokens]
        self._snapshots[fragment].clear()
        self._snapshots[fragment].extend(_SnapshotMark(t.tokens, t.steps, t.tally.without(base.tally)) for t in later)

    def cover(self, fragment: int, tokens: int) -> None:
        """Make this token count the fragment's base, whether or not a snapshot was taken at it.

        If none was taken, the work since this count is unknown, and the tally starts at zero."""
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
    """Return the exponential moving average including `value`, whose weight is a fifth. `average` 0: there is none
    yet."""
    return value if average == 0.0 else 0.8 * average + 0.2 * value
