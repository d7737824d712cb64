"""How far the run has come, as the operator's node has seen: kept over restarts, so that its first state is not taken
for the current one when it is the only node that a newcomer meets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from peer.join.donors import FIRST_ROUNDS, KEPT_ROUNDS, live_round
from peer.protocol.messages import MAX_ROUND, PeerRecord, Status
from peer.protocol.schedule import RoundClock, lower_median
from peer.run.home import write_whole

ALONE_S = 300.0
"""When nobody was seen to train for so long, the kept state is the newest that there is, however old."""
LONGEST_GAP_S = 60.0
"""Between two looks at the directory, for the account of tokens."""


class RunProgress:
    """The furthest round seen; of many peers their lower median, so that one alone cannot claim much. `kept`: a file
    of ours."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self.value = self._load()

    def _load(self) -> int:
        try:
            return min(max(0, int(self._kept.read_text())), MAX_ROUND)
        except (OSError, ValueError):
            return 0

    def learn(self, records: Iterable[PeerRecord]) -> None:
        """Those in the directory now. Raises HomeUnusable when it cannot be kept."""
        seen = min(live_round(records) or 0, MAX_ROUND)
        if seen > self.value:
            self.value = seen
            write_whole(self._kept, str(seen).encode())

    def why_not_first(self) -> str:
        """Why nobody should begin with the first state, for a person; empty: they may."""
        if self.value <= FIRST_ROUNDS:
            return ""
        first = "this node has only the first state"
        return f"{first}, and the run has come to round {self.value}: wait for a peer that trains"

    def why_not_kept(self, kept: int, alone_s: float) -> str:
        """Why nobody should begin with the kept state of this round, for a person; empty: they may. `alone_s`: how long
        nobody was seen to train."""
        if self.value - kept <= KEPT_ROUNDS or alone_s > ALONE_S:
            return ""
        return f"this node has kept round {kept}, and the run has come to round {self.value}: wait for a peer"


class RunActivity:
    """The work of the run as its records tell it: how many tokens, and how long ago somebody trained.

    The tokens are an estimate: those who train, times the lower median of their speeds. One liar moves it little."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._looked_at: float | None = None
        self._trained_at: float | None = None

    @property
    def tokens(self) -> int:
        return int(self._tokens)

    def had(self, tokens: int) -> None:
        """Count on from what an earlier process had counted."""
        self._tokens = max(self._tokens, float(tokens))

    def look(self, records: Iterable[PeerRecord], now: float) -> None:
        """Take note of those in the directory. `now` is in seconds of any steady clock."""
        speeds = [record.tokens_per_s for record in records if record.status is Status.TRAINING]
        gap = min(LONGEST_GAP_S, now - self._looked_at) if self._looked_at is not None else 0.0
        self._looked_at = now
        if self._trained_at is None or speeds:
            self._trained_at = now
        self._tokens += gap * len(speeds) * _lower(speeds)

    def alone_s(self, now: float) -> float:
        """Return for how long nobody has trained."""
        return 0.0 if self._trained_at is None else now - self._trained_at


def _lower(speeds: list[float]) -> float:
    median = lower_median(round(speed) for speed in speeds)
    return 0.0 if median is None else float(min(median, MAX_ROUND))


class RunEnd:
    """Whether the run is over: in seconds by the clock, in steps when the lower median has done the last round.

    `clock` returns the run's clock, whose start may not be known yet."""

    def __init__(self, clock: Callable[[], RoundClock], total_rounds: int, progress: RunProgress) -> None:
        self._clock = clock
        self.total_rounds = total_rounds
        self._progress = progress

    def over(self, now: float) -> bool:
        """`now`: run time."""
        clock = self._clock()
        if clock.kind == "steps":
            return self._progress.value >= self.total_rounds
        return bool(clock.start) and now >= clock.due_at(self.total_rounds - 1)
