"""The arithmetic of outer steps and merges, in place, in fp32. Every tensor is flat and contiguous and of the same
length, a fragment or a part of one. The rules are in `peer.methods`.

Bit identity: the members of a group repeat the same step on the same numbers and have to hold the same bits after it,
whatever their machines. So every multiplication and every addition is rounded by itself: no fused operation, no
`alpha=` form (it is fused where the machine can), and no sum whose order depends on the number of threads. A temporary
is never larger than a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the rules are read where a manifest is checked, which loads no torch
    from torch import Tensor

BLOCK = 2**18
"""Elements of a temporary: 1 MiB, which stays in the cache. The result does not depend on it."""


def pair_mean_(own: Tensor, partner: Tensor) -> Tensor:
    """(own + partner) / 2, written into `partner`, which is returned. In a pair both weigh one half: a consensus
    weighted by tokens would drift towards the fast."""
    return partner.add_(own).mul_(0.5)


def pseudo_gradient_(params: Tensor, outer: Tensor, share: float) -> Tensor:
    """(outer - params) * share, written into `params`, which is returned: a gradient, to be subtracted."""
    import torch

    assert 0 < share <= 1, share
    torch.sub(outer, params, out=params)
    return params if share == 1 else params.mul_(share)


def scale_work_(params: Tensor, outer: Tensor, share: float) -> None:
    """params <- outer + share * (params - outer): keeps `share` of the work since the base. For work that piled up over
    skipped rounds; sent whole, such a stale pseudo-gradient undoes a run."""
    assert 0 < share <= 1, share
    step_along_(params, outer, share)


def step_along_(params: Tensor, outer: Tensor, factor: float) -> None:
    """params <- outer + factor * (params - outer). With factor 1 every bit stays as it is."""
    assert factor > 0, factor
    if factor != 1:
        params.sub_(outer).mul_(factor).add_(outer)


def merge_(params: Tensor, outer: Tensor, alpha: float) -> None:
    """params <- alpha * params + (1 - alpha) * outer: what the fast parameters become when the result of an outer step
    arrives. alpha 0 copies exactly, alpha 1 leaves every bit as it is. The two may live on different devices."""
    assert 0 <= alpha <= 1, alpha
    if alpha == 1:
        return
    if alpha == 0:
        params.copy_(outer)
        return
    for part in blocks(params.numel()):
        taken = outer[part].to(params.device, copy=True).mul_(1.0 - alpha)
        params[part].mul_(alpha).add_(taken)


def blocks(elements: int) -> Iterator[slice]:
    """Slices of at most `BLOCK` that cover `elements`."""
    return (slice(start, start + BLOCK) for start in range(0, elements, BLOCK))


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite, without a temporary: a sum of squares would overflow on large values, the
    extremes do not."""
    import torch

    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) and torch.isfinite(high))
