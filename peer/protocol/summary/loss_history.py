"""The run's validation loss over its rounds, according to the peers. The number of points is bounded: the longer the
run, the fewer points per round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from peer.protocol.summary.weighing import Quartiles

MAX_POINTS = 512


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The losses in one round."""

    t: float
    """Run time in seconds since the epoch at which the round was first seen."""
    round: int
    median: float
    """Median over the peers, in nats per token. `low` and `high` are the quartiles."""
    low: float
    high: float
    count: int
    """Number of peers with a loss."""


class LossHistory:
    """At most `most` points. When there are more, every second one is removed, and the distance between points
    doubles."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        self._most = most
        self._stride = 1
        self.points: list[LossPoint] = []

    def note(self, t: float, round_: int, losses: Quartiles, count: int) -> None:
        """Add the present losses.

        Losses of the last point's round replace it, unless they come from fewer peers. Losses of an earlier round are
        ignored."""
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
        """Add stored points, each a sequence of the fields of `LossPoint`. Raises TypeError or ValueError for anything
        else."""
        for t, round_, median, low, high, count in points:
            self.note(float(t), int(round_), Quartiles(float(low), float(median), float(high)), int(count))

    def report(self) -> tuple[LossPoint, ...]:
        """Return the points with rounded numbers, oldest first."""
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
