"""The radial-directional mean of a group's contributions (Decoupled DiLoCo, arXiv 2604.21428). The equation is from
secondary sources: the paper itself was not at hand. For the parts v of a tensor, with weights w that add up to 1:

    rda = sum(w |v|) * unit(u),   u = sum(w v / |v|)

It is as long as the parts are on average. The weighted mean of parts that have little in common is shorter, by up to
the square root of their number. The norms are those of whole tensors.

The weighted mean takes its place in three cases: among fewer than `FEWEST` members, outside the model's blocks, and
where the directions cancel each other. That is where u is shorter than `CANCELLED` of what it is for directions that
have nothing in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEWEST = 4
CANCELLED = 0.5
NOTHING = 1e-30
"""A part that is no longer has no direction, and could not be divided by its length in fp32."""


def direction(weight: float, length: float) -> float:
    """Return the factor of a part in u."""
    return weight / length if length > NOTHING else 0.0


def stretch(weights: Sequence[float], lengths: Sequence[float], resultant: float) -> float | None:
    """Return the factor of u in the mean. None: the parts' directions cancel each other. `lengths`: of the parts as
    they count. `resultant`: the length of u."""
    if resultant < CANCELLED / math.sqrt(len(weights)):
        return None
    return sum(weight * length for weight, length in zip(weights, lengths, strict=True)) / resultant
