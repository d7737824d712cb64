"""How far the run has come, as the operator's node has seen: kept over restarts, so that its first state is not taken
for the current one when it is the only node that a newcomer meets.

Records alone tell it, and anybody may write one. So no record moves it for good: a round is believed for some minutes,
and longer only after peers were seen to train for long."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from peer.protocol.messages import MAX_ROUND, PeerRecord, Status
from peer.protocol.policy.donors import ALONE_S
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.claimed_round import claimed_round, furthest_round
from peer.run.home import write_whole

LONGEST_GAP_S = 150.0
"""Between two looks at the directory, for the account of tokens."""
REMEMBERED = 10.0
"""A run that was seen to train is remembered for so many times as long as it was seen, and for `ALONE_S` at least."""
KEEP_EVERY_S = 60.0
"""Seconds between two writes of what is remembered."""
MOST_BYTES = 4096
"""Beyond it the file of what is remembered is not read."""


@dataclass(slots=True)
class TrainingPeriod:
    """A time in which peers were seen to train, without a longer gap than `ALONE_S`."""

    round: int
    """The swarm's, at the latest look."""
    seen_s: float
    """For how long, in seconds."""
    last: float
    """When last, run time."""

    def extend(self, round_: int, now: float) -> None:
        """Peers are still seen to train, in this round."""
        self.seen_s += min(max(0.0, now - self.last), LONGEST_GAP_S)
        self.round, self.last = round_, now

    def over(self, now: float) -> bool:
        """Return whether nobody was seen for so long that a new time begins."""
        return now - self.last > ALONE_S

    def forgotten(self, now: float) -> bool:
        return now - self.last > max(ALONE_S, REMEMBERED * self.seen_s)


class RunProgress:
    """The round that the run has come to; of many peers their lower median, so that one alone cannot claim much."""

    def __init__(self, kept: Path, clock: Callable[[], RoundClock], now: Callable[[], float]) -> None:
        """`kept` is a file of ours. `clock` returns the run's clock, whose start may not be known yet, and `now` the
        run time."""
        self._kept = kept
        self._clock = clock
        self._now = now
        self._times = self._load()
        """At most two, the earlier one first. The later one was seen for less long, or it alone would count."""
        self._began = min((seen.last - seen.seen_s for seen in self._times), default=0.0)
        """When peers were first seen to train, run time; 0: never."""
        self._wrote = (0, 0.0)

    def _load(self) -> list[TrainingPeriod]:
        try:
            with self._kept.open("rb") as file:
                found = json.loads(file.read(MOST_BYTES))
            return [
                TrainingPeriod(min(max(0, int(one["round"])), MAX_ROUND), float(one["seen_s"]), float(one["last"]))
                for one in found[:2]
            ]
        except (OSError, ValueError, TypeError, KeyError):
            return []

    @property
    def value(self) -> int:
        """The round; 0: nobody was seen to train, or that was too long ago."""
        now = self._now()
        return next((seen.round for seen in reversed(self._times) if not seen.forgotten(now)), 0)

    def furthest(self) -> int:
        """Return the furthest round that anybody can be in now; 0 while the run has not begun. A run in steps begins
        when peers are first seen to train."""
        clock = self._clock()
        if clock.kind == "steps" and not clock.start:
            clock = replace(clock, start=self._began)
        return min(furthest_round(clock, self._now()) or 0, MAX_ROUND)

    def learn(self, records: Iterable[PeerRecord]) -> None:
        """Take note of the records in the directory now. Raises HomeUnusable when it cannot be kept."""
        now = self._now()
        able = {r.peer_id: r.round for r in records if r.status in (Status.TRAINING, Status.FINISHED)}
        if able and not self._began:
            self._began = now
        round_ = claimed_round(able, most=self.furthest())
        if round_ is None:
            return
        latest = self._times[-1] if self._times else None
        if latest is None or latest.over(now):
            longer = [seen for seen in self._times if not seen.forgotten(now)]
            self._times = [*longer[:1], TrainingPeriod(round_, 0.0, now)]
        else:
            latest.extend(round_, now)
        self._join(now)

    def _join(self, now: float) -> None:
        """Let the latest time stand alone once it was seen as long as the one before, and keep what changed."""
        if len(self._times) == 2 and self._times[1].seen_s >= self._times[0].seen_s:
            del self._times[0]
        latest = self._times[-1]
        if latest.round != self._wrote[0] or now - self._wrote[1] >= KEEP_EVERY_S:
            self._wrote = latest.round, now
            write_whole(self._kept, json.dumps([asdict(seen) for seen in self._times]).encode())


class RunActivity:
    """The work of the run: how many tokens, and how long ago somebody trained.

    The tokens are an estimate from peers' summaries, and rather too low: the lower median of the speeds, times
    their address blocks. Keys are free, so their number does not count."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._worked_at: float | None = None
        self._trained_at: float | None = None

    @property
    def tokens(self) -> int:
        return int(self._tokens)

    def restore_tokens(self, tokens: int) -> None:
        """Count on from what an earlier process had counted."""
        self._tokens = max(self._tokens, float(tokens))

    def observe(self, records: Iterable[PeerRecord], now: float) -> None:
        """Take note of those in the directory. `now` is in seconds of any steady clock."""
        if self._trained_at is None or any(record.status is Status.TRAINING for record in records):
            self._trained_at = now

    def count_work(self, tokens_per_s: float, now: float) -> None:
        """Count the time since the last call at this speed. `now`: seconds of any steady clock."""
        if self._worked_at is not None:
            self._tokens += min(LONGEST_GAP_S, max(0.0, now - self._worked_at)) * tokens_per_s
        self._worked_at = now

    def alone_s(self, now: float) -> float:
        """Return for how long nobody has trained."""
        return 0.0 if self._trained_at is None else now - self._trained_at


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
