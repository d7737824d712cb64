"""What was done since each fragment's base."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkAccounts:
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

    def plus(self, part: WorkAccounts) -> WorkAccounts:
        return WorkAccounts(
            self.steps + part.steps,
            self.skipped + part.skipped,
            self.loss_sum + part.loss_sum,
            self.nanoseconds + part.nanoseconds,
        )

    def without(self, part: WorkAccounts) -> WorkAccounts:
        """What came after `part`."""
        return WorkAccounts(
            self.steps - part.steps,
            self.skipped - part.skipped,
            self.loss_sum - part.loss_sum,
            self.nanoseconds - part.nanoseconds,
        )


RECENT = 9
"""Steps that the expectation of the next one is made from."""


@dataclass(slots=True)
class StepPace:
    """How long an inner step takes here: the median of the last few, so that one that something else on this machine
    held up changes little."""

    steps: int = 0
    """Of this process."""
    step_s: float = 0.0
    """Seconds; 0 before the first one."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def took(self, seconds: float) -> None:
        self.steps += 1
        self._recent.append(seconds)
        self.step_s = statistics.median(self._recent)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot whose result may still come."""

    tokens: int
    steps: int
    """Of this process, until then."""
    tally: WorkAccounts
    """Since the fragment's base, then."""


class Account:
    """Keeps the tallies of all fragments, and remembers the last two snapshots of each: a result may come when the next
    one has been taken already, an older one never. Snapshots are named by the trainer's token count."""

    def __init__(self, fragments: int) -> None:
        self.tallies = [WorkAccounts()] * fragments
        """Since the base, for each fragment."""
        self.steps = 0
        """Of this process."""
        self.since_snapshot = 0
        """Steps since the last snapshot of any fragment."""
        self._taken: list[deque[_Taken]] = [deque(maxlen=2) for _ in range(fragments)]

    def resume(self, since_snapshot: int, tallies: Sequence[WorkAccounts]) -> None:
        """Go on from a save: the bases are the old ones, and no result of before can still come."""
        assert len(tallies) == len(self.tallies), (len(tallies), len(self.tallies))
        self.tallies, self.since_snapshot = list(tallies), since_snapshot

    def worked(self, done: WorkAccounts) -> None:
        self.tallies = [tally.plus(done) for tally in self.tallies]
        self.steps += done.steps
        self.since_snapshot += done.steps

    def snapshot(self, fragment: int, tokens: int) -> WorkAccounts:
        """What was done since the fragment's base."""
        tally = self.tallies[fragment]
        self._taken[fragment].append(_Taken(tokens, self.steps, tally))
        self.since_snapshot = 0
        return tally

    def steps_since(self, fragment: int, tokens: int) -> int:
        """Steps since this snapshot."""
        return self.steps - self._find(fragment, tokens).steps

    def rebase(self, fragment: int, tokens: int) -> None:
        """The fragment's base is this snapshot; earlier ones are forgotten."""
        base = self._find(fragment, tokens)
        self.tallies[fragment] = self.tallies[fragment].without(base.tally)
        later = [taken for taken in self._taken[fragment] if taken.tokens > tokens]
        self._taken[fragment].clear()
        self._taken[fragment].extend(_Taken(t.tokens, t.steps, t.tally.without(base.tally)) for t in later)

    def _find(self, fragment: int, tokens: int) -> _Taken:
        found = [taken for taken in self._taken[fragment] if taken.tokens == tokens]
        assert found, f"what is applied comes from a snapshot of fragment {fragment}, but none was taken at {tokens}"
        return found[-1]
