"""The mean over a group, as the owner of a shard makes it once for everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

FAR = 10.0
"""So many times the median norm of the contributions is too far: it is left out. What is below can do harm, but bounded
harm; peers that did ten times the work of the median are honest and rare."""
HEAVY = 10.0
"""No contribution weighs more than so many times the median: tokens are its sender's word."""


def norm(values: Tensor) -> float:
    """L2, in double precision; infinite or NaN when a value is."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def lower_median(values: Sequence[float]) -> float:
    assert values
    return sorted(values)[(len(values) - 1) // 2]


def too_far(norms: Mapping[str, float]) -> list[str]:
    """Whose contribution is beyond FAR times the (lower) median norm. Nobody's, when that is zero."""
    limit = FAR * lower_median(list(norms.values()))
    return [peer for peer, value in norms.items() if 0 < limit < value]


def weighted_mean(values: Sequence[Tensor], tokens: Sequence[int]) -> Tensor:
    """sum(w_i * x_i) / sum(w_i) in fp32, in the order given; w_i = tokens_i, but HEAVY times the median at most. The
    tensors are flat fp32 of one length and are overwritten; the first of them is returned."""
    assert len(values) == len(tokens) > 0
    heaviest = HEAVY * lower_median(list(tokens))
    weights = [min(float(count), heaviest) for count in tokens]
    total = sum(weights)
    mean = values[0].mul_(weights[0] / total)
    for part, weight in zip(values[1:], weights[1:], strict=True):
        mean.add_(part.mul_(weight / total))
    return mean
