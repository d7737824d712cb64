"""A curve of bounded length over a run of any length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_POINTS = 400


class ThinnedCurve:
    """Points with a growing x. When it is full, every other point goes, and later ones are taken half as often."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        assert most >= 2
        self._most = most
        self._gap = 1e-9
        self.points: list[tuple[float, float]] = []

    def add(self, x: float, y: float | None) -> None:
        """Take a point, unless it has no value or is too near to the last one."""
        if y is None or not math.isfinite(y) or (self.points and x - self.points[-1][0] < self._gap):
            return
        self.points.append((x, y))
        if len(self.points) > self._most:
            self.points = self.points[::2]
            self._gap = (self.points[-1][0] - self.points[0][0]) / (len(self.points) - 1)


def thinned(points: Sequence[T], most: int = MOST_POINTS) -> list[T]:
    """Return at most `most` of the points, evenly, the first and the last one always."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(at * step)] for at in range(most)]
