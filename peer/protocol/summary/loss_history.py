"""The run's validation loss over its rounds, as peers say it: bounded, and the thinner the longer the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from peer.protocol.summary.weighing import Quartiles

MAX_POINTS = 512


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The losses of one round."""

    t: float
    """Run time, seconds since the epoch, when the round was first seen."""
    round: int
    median: float
    """Nats a token, over peers. The two others are the quartiles."""
    low: float
    high: float
    count: int
    """Peers that said something."""


class LossHistory:
    """At most `most` points. When there are more, every second one goes, and the rounds between two points double."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        self._most = most
        self._stride = 1
        self.points: list[LossPoint] = []

    def note(self, t: float, round_: int, losses: Quartiles, count: int) -> None:
        """Take the losses as they are now.

        Those of the last point's round replace it, unless fewer peers say them. Those of an earlier round are dropped,
        as they are old."""
        point = LossPoint(t, round_, losses.median, losses.low, losses.high, count)
        last = self.points[-1] if self.points else None
        if last is not None and round_ < last.round + self._stride:
            if round_ == last.round and count >= last.count:
                self.points[-1] = replace(point, t=last.t)
            return
        self.points.append(point)
        if len(self.points) > self._most:
            self.points = self.points[::2]
            self._stride *= 2

    def restore(self, points: Iterable[Sequence[float]]) -> None:
        """Go on from the fields of kept points. Raises TypeError or ValueError for anything else."""
        for t, round_, median, low, high, count in points:
            self.note(float(t), int(round_), Quartiles(float(low), float(median), float(high)), int(count))

    def report(self) -> tuple[LossPoint, ...]:
        """Return the points with their numbers rounded, the oldest first."""
        return tuple(
            LossPoint(
                t=round(point.t, 1),
                round=point.round,
                median=round(point.median, 5),
                low=round(point.low, 5),
                high=round(point.high, 5),
                count=point.count,
            )
            for point in self.points
        )
