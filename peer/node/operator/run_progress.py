"""The run's progress as the operator's node has observed it. It is stored across restarts, so that a first state is not
served as the current one when this node is the only one that a joiner meets.

Progress is known only from records, which anyone can write. A claimed round is therefore believed for a few minutes,
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
"""Longest time between two reads of the directory that counts as work, in seconds."""
REMEMBERED = 10.0
"""A training period is remembered for this many times its length, but at least for `ALONE_S`."""
KEEP_EVERY_S = 60.0
"""Seconds between two writes of the file."""
MOST_BYTES = 4096
"""Bytes of the largest file that is read."""


@dataclass(slots=True)
class TrainingPeriod:
    """A period in which peers were seen to train, without a gap of more than `ALONE_S`."""

    round: int
    """The swarm's round at the latest observation."""
    seen_s: float
    """Length of the period in seconds."""
    last: float
    """Run time of the latest observation."""

    def extend(self, round_: int, now: float) -> None:
        """Extend the period: peers are still training, in this round."""
        self.seen_s += min(max(0.0, now - self.last), LONGEST_GAP_S)
        self.round, self.last = round_, now

    def over(self, now: float) -> bool:
        """Return whether no peer was seen for so long that a new period begins."""
        return now - self.last > ALONE_S

    def forgotten(self, now: float) -> bool:
        """Return whether the period is too old to be believed."""
        return now - self.last > max(ALONE_S, REMEMBERED * self.seen_s)


class RunProgress:
    """The round that the run has reached: the lower median of the peers' rounds, which a single peer with a false claim
    can hardly change."""

    def __init__(self, kept: Path, clock: Callable[[], RoundClock], now: Callable[[], float]) -> None:
        """`kept`: the file. `clock`: returns the run's clock, whose start may not be known yet. `now`: returns the run
        time."""
        self._kept = kept
        self._clock = clock
        self._now = now
        self._times = self._load()
        """At most two periods, the earlier first. The later one is shorter, or it would have replaced the earlier."""
        self._began = min((seen.last - seen.seen_s for seen in self._times), default=0.0)
        """Run time at which peers were first seen to train. 0: never."""
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
        """The round. 0: no peer was seen to train, or that was too long ago."""
        now = self._now()
        return next((seen.round for seen in reversed(self._times) if not seen.forgotten(now)), 0)

    def furthest(self) -> int:
        """Return the latest round that any peer can be in now. 0: the run has not begun. A run in steps begins when
        peers are first seen to train."""
        clock = self._clock()
        if clock.kind == "steps" and not clock.start:
            clock = replace(clock, start=self._began)
        return min(furthest_round(clock, self._now()) or 0, MAX_ROUND)

    def learn(self, records: Iterable[PeerRecord]) -> None:
        """Update the progress by the records in the directory. Raises HomeUnusable when the file cannot be written."""
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
        """Drop the earlier period once the later one is as long, and write the file if something changed."""
        if len(self._times) == 2 and self._times[1].seen_s >= self._times[0].seen_s:
            del self._times[0]
        latest = self._times[-1]
        if latest.round != self._wrote[0] or now - self._wrote[1] >= KEEP_EVERY_S:
            self._wrote = latest.round, now
            write_whole(self._kept, json.dumps([asdict(seen) for seen in self._times]).encode())


class RunActivity:
    """The work of the run: the number of tokens, and the time since a peer last trained.

    The tokens are a low estimate from peers' summaries: the lower median of the speeds, times the number of address
    blocks. The number of keys does not count, because keys are free."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._worked_at: float | None = None
        self._trained_at: float | None = None

    @property
    def tokens(self) -> int:
        return int(self._tokens)

    def restore_tokens(self, tokens: int) -> None:
        """Continue from the count of an earlier process."""
        self._tokens = max(self._tokens, float(tokens))

    def observe(self, records: Iterable[PeerRecord], now: float) -> None:
        """Update the activity by the records in the directory. `now`: seconds of a monotonic clock."""
        if self._trained_at is None or any(record.status is Status.TRAINING for record in records):
            self._trained_at = now

    def count_work(self, tokens_per_s: float, now: float) -> None:
        """Add the tokens since the last call, at this speed. `now`: seconds of a monotonic clock."""
        if self._worked_at is not None:
            self._tokens += min(LONGEST_GAP_S, max(0.0, now - self._worked_at)) * tokens_per_s
        self._worked_at = now

    def alone_s(self, now: float) -> float:
        """Return the seconds since a peer last trained. 0: `observe` was not called yet."""
        return 0.0 if self._trained_at is None else now - self._trained_at


class RunEnd:
    """Decides whether the run is over: by the clock if rounds are in seconds, otherwise by whether the lower median of
    the peers' rounds has passed the last round.

    `clock`: returns the run's clock, whose start may not be known yet."""

    def __init__(self, clock: Callable[[], RoundClock], total_rounds: int, progress: RunProgress) -> None:
        self._clock = clock
        self.total_rounds = total_rounds
        self._progress = progress

    def over(self, now: float) -> bool:
        """Return whether the run is over. `now`: run time."""
        clock = self._clock()
        if clock.kind == "steps":
            return self._progress.value >= self.total_rounds
        return bool(clock.start) and now >= clock.due_at(self.total_rounds - 1)
