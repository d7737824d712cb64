"""The course of a swarm: its loss at each evaluation with the tokens, bytes and seconds so far, and the outcome of each
round for each peer. Made from the peers' journals, so that real and simulated swarms are read in the same way."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.observe.events import Evaluated, Event, RoundEnded, RoundMissed, SatOut, Skipped
from peer.observe.totals import Totals, fold

Journal = Iterable[tuple[float, Event]]
"""The events of one peer with their times in seconds, in order."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a swarm at one evaluation. Loss, bytes and seconds are means over its peers."""

    round: int
    tokens: float
    """Tokens trained by all peers together, as far as outer steps include them."""
    bytes: float
    """Payload bytes sent in exchanges, mean over the peers."""
    seconds: float
    """Seconds since the first peer began to train."""
    loss: float
    """Loss of `outer_params` on the hold-out, in nats per token."""
    evaluated: int = 0
    """Number of peers in the mean loss; with several seeds, the smallest of their numbers."""

    def to_json(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "tokens": round(self.tokens),
            "bytes": round(self.bytes),
            "seconds": round(self.seconds, 3),
            "loss": self.loss,
            "evaluated": self.evaluated,
        }


Curve = tuple[Mark, ...]
"""The evaluations of a swarm, ordered by round."""


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one peer at the end of one round. Tokens, bytes and seconds count from the start, as in `Mark`."""

    round: int
    """Number of finished rounds, as in `Mark`: 1 after the first round, which the journal numbers 0. 0: the start."""
    peer: int
    """Number of the peer, from 1."""
    outcome: str
    """exchanged, solo, refused, missed, sat_out or skipped. Empty: the journal has no outcome, as at the start."""
    loss: float | None
    """Loss of this peer's `outer_params` on the hold-out, in nats per token. None: not evaluated after this round."""
    tokens: int
    """Tokens trained by this peer, as far as outer steps include them."""
    bytes: float
    """Payload bytes sent by this peer in exchanges."""
    seconds: float
    """Seconds since the first peer began to train."""


@dataclass(frozen=True, slots=True)
class SwarmCourse:
    """The course of one swarm, from its journals: the loss at each evaluation, and the rounds of each peer."""

    curve: Curve
    rows: tuple[Row, ...] = ()
    """Ordered by round, then by peer."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A peer's progress at one moment: `at` in seconds, tokens in outer steps, payload bytes sent."""

    at: float
    tokens: int
    sent: int


@dataclass(slots=True)
class _Track:
    """The progress of one peer."""

    began: float = math.inf
    places: list[_Place] = field(default_factory=list)
    """Progress after each outer step."""
    evaluated: dict[int, tuple[_Place, float]] = field(default_factory=dict)
    """Finished rounds -> progress and loss of an evaluation."""
    outcomes: dict[int, tuple[_Place, str]] = field(default_factory=dict)
    """Finished rounds -> progress and outcome of the last of them."""

    def place(self, at: float) -> _Place:
        """Return the progress at a time in seconds."""
        upto = bisect_right(self.places, at, key=lambda place: place.at)
        return self.places[upto - 1] if upto else _Place(at, 0, 0)


def course_of(journals: Iterable[Journal], bytes_each: float = 1.0) -> SwarmCourse:
    """Make the course of a swarm from its peers' journals. `bytes_each`: real bytes for each byte in the journals, for
    a small model that stands for a larger one."""
    tracks = [_tracked(journal) for journal in journals]
    began = min((track.began for track in tracks), default=math.inf)
    rounds = sorted({round_ for track in tracks for round_ in track.evaluated})
    rows = [row for peer, track in enumerate(tracks, 1) for row in _rows(peer, track, began, bytes_each)]
    return SwarmCourse(
        tuple(_mark(round_, tracks, began, bytes_each) for round_ in rounds),
        tuple(sorted(rows, key=lambda row: (row.round, row.peer))),
    )


def _tracked(journal: Journal) -> _Track:
    totals, track = Totals(), _Track()
    for at, event in journal:
        totals = fold(totals, event, at)
        place = _Place(at, max(totals.upto.values(), default=0), totals.bytes_sent)
        match event:
            case RoundEnded():
                track.places.append(place)
                track.outcomes[event.round + 1] = place, event.outcome
            case SatOut():
                track.outcomes.setdefault(event.round + 1, (place, "sat_out"))
            case RoundMissed():  # a round that was sat out is also missed: the earlier SatOut counts
                track.outcomes.setdefault(event.round + 1, (place, "missed"))
            case Skipped():
                for round_ in range(event.from_round, event.to_round):
                    track.outcomes.setdefault(round_ + 1, (place, "skipped"))
            case Evaluated() if math.isfinite(event.loss):
                track.evaluated[event.round] = place, event.loss
    track.began = math.inf if totals.joined_at is None else totals.joined_at
    return track


def _mark(round_: int, tracks: Sequence[_Track], began: float, bytes_each: float) -> Mark:
    """Combine the peers' evaluations of a round. A peer that was not evaluated in that round counts with its progress
    up to then."""
    here = [track.evaluated[round_] for track in tracks if round_ in track.evaluated]
    at = sum(place.at for place, _ in here) / len(here)
    places = [track.evaluated[round_][0] if round_ in track.evaluated else track.place(at) for track in tracks]
    return Mark(
        round=round_,
        tokens=sum(place.tokens for place in places),
        bytes=bytes_each * sum(place.sent for place in places) / len(places),
        seconds=max(0.0, at - began),
        loss=sum(loss for _, loss in here) / len(here),
        evaluated=len(here),
    )


def _rows(peer: int, track: _Track, began: float, bytes_each: float) -> Iterator[Row]:
    for round_ in track.outcomes.keys() | track.evaluated.keys():
        evaluated = track.evaluated.get(round_)
        place, outcome = track.outcomes.get(round_) or (track.evaluated[round_][0], "")
        yield Row(
            round=round_,
            peer=peer,
            outcome=outcome,
            loss=None if evaluated is None else evaluated[1],
            tokens=place.tokens,
            bytes=bytes_each * place.sent,
            seconds=max(0.0, place.at - began),
        )


def mean_of(curves: Sequence[Curve]) -> Curve:
    """Return the mean of the curves of several seeds, over the rounds that all of them have."""
    shared = sorted(set.intersection(*({mark.round for mark in curve} for curve in curves)))
    by_round = [{mark.round: mark for mark in curve} for curve in curves]
    return tuple(_mean([marks[round_] for marks in by_round]) for round_ in shared)


def _mean(marks: Sequence[Mark]) -> Mark:
    def of(name: str) -> float:
        return math.fsum(getattr(mark, name) for mark in marks) / len(marks)

    evaluated = min(mark.evaluated for mark in marks)
    return Mark(marks[0].round, of("tokens"), of("bytes"), of("seconds"), of("loss"), evaluated)


def loss_at(curve: Curve, tokens: float) -> float:
    """Return the loss at this number of tokens, linearly interpolated between two evaluations. Outside the curve, that
    of its first or last evaluation."""
    later = next((place for place, mark in enumerate(curve) if mark.tokens >= tokens), len(curve) - 1)
    if later == 0 or curve[later].tokens <= tokens:
        return curve[later].loss
    one, other = curve[later - 1], curve[later]
    part = (tokens - one.tokens) / (other.tokens - one.tokens)
    return one.loss + part * (other.loss - one.loss)


def reached(curve: Curve, target: float) -> Mark | None:
    """Return the first evaluation with a loss of at most `target`. None: there is none. This is the time to a target of
    AlgoPerf (arXiv 2306.07179), which counts evaluations and does not interpolate."""
    return next((mark for mark in curve if mark.loss <= target), None)
