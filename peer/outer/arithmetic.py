"""In-place fp32 arithmetic of outer steps and merges. All tensors are flat, contiguous and of the same length: a
fragment or a part of one. The outer rules are in `peer.methods`.

Bit identity: the members of a group repeat the same step on the same numbers, and must get the same bits on every
machine. So each multiplication and each addition is rounded separately: no fused operation, no `alpha=` argument (it is
fused where the machine can), and no sum whose order depends on the number of threads. Temporaries have at most `BLOCK`
elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the check of a manifest imports the rules, and must not load torch
    from torch import Tensor

BLOCK = 2**18
"""Elements of a temporary (1 MiB, which fits the cache). The results do not depend on it."""


def pair_mean_(own: Tensor, partner: Tensor) -> Tensor:
    """Write (own + partner) / 2 into `partner` and return it.

    Both weigh one half: a mean weighted by tokens would drift towards the faster peer."""
    return partner.add_(own).mul_(0.5)


def pseudo_gradient_(params: Tensor, outer: Tensor, share: float) -> Tensor:
    """Write (outer - params) * share into `params` and return it. It is a gradient: rules subtract it."""
    import torch

    assert 0 < share <= 1, share
    torch.sub(outer, params, out=params)
    return params if share == 1 else params.mul_(share)


def scale_work_(params: Tensor, outer: Tensor, share: float) -> None:
    """params <- outer + share * (params - outer): keep the fraction `share` of the work since the base.

    Used for work that accumulated over skipped rounds. A stale pseudo-gradient of full size makes training diverge."""
    assert 0 < share <= 1, share
    step_along_(params, outer, share)


def step_along_(params: Tensor, outer: Tensor, factor: float) -> None:
    """params <- outer + factor * (params - outer). Factor 1 leaves every bit as it is."""
    assert factor > 0, factor
    if factor != 1:
        params.sub_(outer).mul_(factor).add_(outer)


def merge_(params: Tensor, outer: Tensor, alpha: float) -> None:
    """params <- alpha * params + (1 - alpha) * outer: merge the result of an outer step into the fast parameters.

    alpha 0 copies exactly, alpha 1 leaves every bit as it is. The two tensors may be on different devices."""
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
    """Return slices of at most `BLOCK` elements that cover `elements`."""
    return (slice(start, start + BLOCK) for start in range(0, elements, BLOCK))


def all_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite, without a temporary. Minimum and maximum are used because a sum of
    squares could overflow."""
    import torch

    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)  # NaN if any element is
    return math.isfinite(low) and math.isfinite(high)
