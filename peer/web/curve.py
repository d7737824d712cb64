"""Curves of bounded length, for runs of any length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_POINTS = 400


class ThinnedCurve:
    """A curve with increasing x and at most `most` points. When it is full, every other point is dropped and new points
    are accepted half as often."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        assert most >= 2
        self._most = most
        self._gap = 1e-9
        self.points: list[tuple[float, float]] = []

    def add(self, x: float, y: float | None) -> None:
        """Add a point, unless y is None or not finite, or x is too close to the last point."""
        if y is None or not math.isfinite(y) or (self.points and x - self.points[-1][0] < self._gap):
            return
        self.points.append((x, y))
        if len(self.points) > self._most:
            self.points = self.points[::2]
            self._gap = (self.points[-1][0] - self.points[0][0]) / (len(self.points) - 1)


def thinned(points: Sequence[T], most: int = MOST_POINTS) -> list[T]:
    """Return at most `most` of the points, evenly spaced, including the first and the last."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(at * step)] for at in range(most)]
