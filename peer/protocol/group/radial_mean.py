"""The radial-directional mean of a group's contributions (Decoupled DiLoCo, arXiv 2604.21428). The equation is from
secondary sources; the paper itself was not available. For the contributions v to a tensor, with weights w that sum to
1:

    rda = sum(w |v|) * unit(u),   u = sum(w v / |v|)

Its length is the mean length of the contributions. The weighted mean of contributions that have little in common is
shorter, by up to the square root of their number. The norms are those of whole tensors.

The weighted mean is used instead among fewer than `FEWEST` members, outside the model's blocks, and where the
directions cancel each other: u is then shorter than `CANCELLED` times the length that it has for independent
directions."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEWEST = 4
CANCELLED = 0.5
NOTHING = 1e-30
"""A contribution of this length or less has no direction: dividing by its length would overflow in fp32."""


def direction(weight: float, length: float) -> float:
    """Return the factor of a contribution in u."""
    return weight / length if length > NOTHING else 0.0


def stretch(weights: Sequence[float], lengths: Sequence[float], resultant: float) -> float | None:
    """Return the factor of u in the mean. None: the directions cancel each other. `lengths`: of the contributions.
    `resultant`: the length of u."""
    if resultant < CANCELLED / math.sqrt(len(weights)):
        return None
    return sum(weight * length for weight, length in zip(weights, lengths, strict=True)) / resultant
