"""Totals over all events of a peer, and the ledger computed from them. Both are pure folds: the daemon and a reader of
a killed process's journal get the same sums from the same events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from peer.observe.event_codec import MAX_INT, DamagedLine, read_lines
from peer.observe.events import (
    Carried,
    Dropped,
    Evaluated,
    Event,
    Leaving,
    Left,
    PartnerFailed,
    RoundDue,
    RoundEnded,
    RoundMissed,
    SatOut,
    Skipped,
    Started,
    StateFetched,
    TrainerDeath,
    TrainingBegan,
)

T = TypeVar("T")

KEEP = 2000
"""Evaluations kept from the beginning of the run, and the same number from the end."""
KEEP_LIVE = 500
"""Most intervals of training that are stored."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a journal. Times are seconds since the epoch. The size is bounded for any length of run."""

    rounds: Mapping[str, int] = field(default_factory=dict)
    """Number of rounds: due, exchanged, solo, refused, missed, sat_out, skipped. Missing keys count as 0."""
    paths: Mapping[str, int] = field(default_factory=dict)
    """Exchanged rounds by the path of their bytes."""
    applied: int = 0
    """Work in outer steps, tokens x elements of the fragment."""
    dropped: int = 0
    """Discarded work, tokens x elements of the fragment."""
    upto: Mapping[int, int] = field(default_factory=dict)
    """For each fragment: the trainer's token counter up to which RoundEnded or Dropped events account for the work."""
    steps: int = 0
    """Inner steps whose work entered an outer step."""
    bytes_sent: int = 0
    """Payload bytes in exchanges."""
    bytes_received: int = 0
    """Payload bytes in exchanges."""
    state_bytes: int = 0
    """Bytes of states fetched from donors."""
    seconds_exchanging: float = 0.0
    partner_failures: int = 0
    trainer_deaths: int = 0
    starts: int = 0
    """Starts of the daemon."""
    val_loss: tuple[tuple[int, float, float], ...] = ()
    """(round, nats a token, bits per byte) of the first and last `KEEP` evaluations. The last entry is the latest."""
    joined_at: float | None = None
    """When training first began. None: not yet."""
    live: tuple[tuple[float, float], ...] = ()
    """(begin, end) of the last 500 intervals of training. After a kill an interval ends with the last event before
    it."""
    live_since: float | None = None
    """Begin of the current interval. None: not training."""
    last_at: float | None = None
    """Time of the latest event."""

    def to_json(self) -> dict[str, Any]:
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        body["rounds"], body["paths"] = dict(self.rounds), dict(self.paths)
        body["upto"] = {str(fragment): tokens for fragment, tokens in self.upto.items()}
        body["val_loss"] = [[r, *(x if math.isfinite(x) else None for x in rest)] for r, *rest in self.val_loss]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Totals:
        """Read totals. Fields that an older version did not write get their defaults. Raises DamagedLine."""
        given = {f.name: body[f.name] for f in fields(cls) if f.name in body}
        try:
            for name in ("rounds", "paths"):
                given[name] = {str(k): _whole(v) for k, v in dict(given.get(name, {})).items()}
            given["upto"] = {int(k): _whole(v) for k, v in dict(given.get("upto", {})).items()}
            given["val_loss"] = tuple((_whole(r), _real(x), _real(b)) for r, x, b in given.get("val_loss", ()))
            live = ((_real(a), _real(b)) for a, b in given.get("live", ()))
            given["live"] = tuple((a, b) for a, b in live if math.isfinite(a) and math.isfinite(b))
            for name in _INTEGERS & given.keys():
                _whole(given[name])
            for name in ("joined_at", "live_since", "last_at"):
                given[name] = at if math.isfinite(at := _real(given.get(name))) else None
            given["seconds_exchanging"] = _seconds(_real(given.get("seconds_exchanging")))
        except (TypeError, ValueError, OverflowError) as error:
            raise DamagedLine(f"totals: {error}") from error
        return cls(**given)


_INTEGERS = {f.name for f in fields(Totals) if f.type == "int"}


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INT:
        raise TypeError("not an integer that can be")
    return value


def _real(value: Any) -> float:
    return math.nan if value is None else float(value)


def _seconds(value: float) -> float:
    """Return 0 for NaN and infinity, which would make every later sum useless."""
    return value if math.isfinite(value) else 0.0


def fold(totals: Totals, event: Event, t: float) -> Totals:
    """Return the totals with one event added. `t`: its time, seconds since the epoch. Raises DamagedLine for a
    `Carried` event that cannot be read, and nothing else."""
    if isinstance(event, Carried):
        return Totals.from_json(event.totals)
    changed = {**_counts(totals, event), **_work(totals, event), **_presence(totals, event, t)}
    return replace(totals, **changed, last_at=t)


def _counts(totals: Totals, event: Event) -> dict[str, Any]:
    """Return the changed counters."""
    match event:
        case RoundDue():
            return _count(totals, "due")
        case RoundEnded():
            return {**_count(totals, event.outcome), **_count_path(totals, event.path)}
        case RoundMissed():
            return _count(totals, "missed")
        case SatOut():
            return _count(totals, "sat_out")
        case Skipped():
            return _count(totals, "skipped", event.to_round - event.from_round)
        case PartnerFailed():
            return {"partner_failures": totals.partner_failures + 1}
        case TrainerDeath():
            return {"trainer_deaths": totals.trainer_deaths + 1}
        case StateFetched():
            return {"state_bytes": totals.state_bytes + event.bytes}
        case Evaluated():
            point = (event.round, event.loss, event.bits_per_byte)
            return {"val_loss": _ends([*totals.val_loss, point])}
    return {}


def _count(totals: Totals, name: str, by: int = 1) -> dict[str, Any]:
    return {"rounds": {**totals.rounds, name: totals.rounds.get(name, 0) + by}}


def _count_path(totals: Totals, path: str) -> dict[str, Any]:
    return {"paths": {**totals.paths, path: totals.paths.get(path, 0) + 1}} if path else {}


def _work(totals: Totals, event: Event) -> dict[str, Any]:
    """Return the changed sums of work."""
    if not isinstance(event, RoundEnded | Dropped):
        return {}
    changed = {"upto": {**totals.upto, event.fragment: event.upto}, "dropped": totals.dropped + event.dropped}
    if isinstance(event, Dropped):
        return changed
    return changed | {
        "applied": totals.applied + event.applied,
        "steps": totals.steps + event.steps,
        "bytes_sent": totals.bytes_sent + event.bytes_sent,
        "bytes_received": totals.bytes_received + event.bytes_received,
        "seconds_exchanging": totals.seconds_exchanging + _seconds(event.seconds),
    }


def _presence(totals: Totals, event: Event, t: float) -> dict[str, Any]:
    """Return the changed times of presence."""
    match event:
        case Started():
            # After a kill the interval is still open. The last event is the latest proof that the peer was live.
            closed = _closed(totals, t if totals.last_at is None else totals.last_at)
            return {**closed, "starts": totals.starts + 1}
        case TrainingBegan():
            joined = t if totals.joined_at is None else totals.joined_at
            since = t if totals.live_since is None else totals.live_since
            return {"joined_at": joined, "live_since": since}
        case Leaving() | Left():
            return _closed(totals, t)
    return {}


def _closed(totals: Totals, at: float) -> dict[str, Any]:
    if totals.live_since is None:
        return {}
    return {"live": (*totals.live, (totals.live_since, at))[-KEEP_LIVE:], "live_since": None}


def _ends(values: Sequence[T]) -> tuple[T, ...]:
    """Return the first and the last `KEEP` values."""
    return tuple(values) if len(values) <= 2 * KEEP else (*values[:KEEP], *values[-KEEP:])


def rotated_path(path: Path) -> Path:
    """Return the path of the rotated part of a journal."""
    return path.with_name(path.name + ".1")


def replay(path: Path) -> tuple[Totals, int]:
    """Return the totals over a journal, and the number of lines that were skipped as damaged.

    Both parts are read, the rotated one first; the `Carried` event at the beginning of the second replaces the sums of
    the first. If a rotation was interrupted, all events are in the first part. Raises OSError when a file exists and
    cannot be read."""
    totals, skipped = Totals(), 0
    for part in (rotated_path(path), path):
        for line in read_lines(part):
            try:
                if line is None:
                    raise DamagedLine
                totals = fold(totals, *line)
            except DamagedLine:
                skipped += 1
    return totals, skipped


def read_totals(path: Path) -> Totals:
    """Return the totals over a journal whose process may have been killed at any time. A missing journal gives zeros.

    Raises OSError when a file exists and cannot be read."""
    return replay(path)[0]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Accounts for all work of a trainer. The unit is tokens x elements of the fragment."""

    processed: int
    applied: int
    dropped: int
    outstanding: int

    @property
    def imbalance(self) -> int:
        """Must be 0. Another value means that work was lost or counted twice."""
        return self.processed - self.applied - self.dropped - self.outstanding


def ledger(totals: Totals, tokens: int, base: Sequence[int], elements: Sequence[int]) -> Ledger:
    """Return the ledger. `tokens`: tokens that the trainer has processed. `base`: its token counter at the snapshot of
    each fragment that was merged last. `elements`: elements of each fragment.

    The journal is written before a base counter moves. A kill between the two leaves the counter behind the journal, so
    the larger of both is used."""
    assert len(base) == len(elements), (len(base), len(elements))
    covered = [max(b, totals.upto.get(fragment, 0)) for fragment, b in enumerate(base)]
    outstanding = sum((tokens - c) * n for c, n in zip(covered, elements, strict=True))
    return Ledger(tokens * sum(elements), totals.applied, totals.dropped, outstanding)
