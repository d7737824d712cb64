"""Outer rules, in place, in fp32. Every tensor is flat and contiguous and of the same length, a fragment or a part of
one.

Bit identity: the members of a group repeat the same step on the same numbers and have to hold the same bits after it,
whatever their machines. So every multiplication and every addition is rounded by itself: no fused operation, no
`alpha=` form (it is fused where the machine can), and no sum whose order depends on the number of threads. A temporary
is never larger than a block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**18
"""Elements of a temporary: 1 MiB, which stays in the cache. The result does not depend on it."""


def pair_mean_(own: Tensor, partner: Tensor) -> Tensor:
    """(own + partner) / 2, written into `partner`, which is returned. In a pair both weigh one half: a consensus
    weighted by tokens would drift towards the fast."""
    return partner.add_(own).mul_(0.5)


def noloco_(outer: Tensor, momentum: Tensor, mean_params: Tensor, *, outer_lr: float, outer_momentum: float) -> None:
    """NoLoCo's step with consensus = outer_lr, where mean(pseudo-gradient) and mean(outer_params) fold into the mean of
    the fast parameters (arXiv 2506.10911, Eq. 1-3 with the sign of its proof, Eq. 32):

        m <- outer_momentum * m + outer_lr * (mean(params) - outer);   outer <- outer + m

    `mean_params` is the mean over the group (own parameters for a solo step) and is overwritten."""
    mean_params.sub_(outer).mul_(outer_lr)
    momentum.mul_(outer_momentum).add_(mean_params)
    outer.add_(momentum)


def noloco_apart_(
    outer: Tensor,
    momentum: Tensor,
    mean_params: Tensor,
    mean_outer: Tensor,
    *,
    outer_lr: float,
    outer_momentum: float,
    consensus: float,
) -> None:
    """NoLoCo's step with a consensus of its own, with mean(g) = mean(outer) - mean(params):

        m <- outer_momentum * m - outer_lr * mean(g) - consensus * (outer - mean(outer));   outer <- outer + m

    `mean_params` and `mean_outer` are means over the group and are overwritten."""
    mean_params.sub_(mean_outer).mul_(outer_lr)
    mean_outer.sub_(outer).mul_(consensus)
    momentum.mul_(outer_momentum).add_(mean_params).add_(mean_outer)
    outer.add_(momentum)


def gasloc_(
    outer: Tensor, momentum: Tensor, own: Tensor, partner: Tensor | None, *, outer_momentum: float, consensus: float
) -> None:
    """GASLoC's step for a pair (arXiv 2606.11081, the accelerated form). The equation is from a secondary source, a
    catalogue's entry: the paper itself was not at hand. With u = outer + share * outer_lr * (params - outer), which is
    `step_along_`, the partner's y, and d for `momentum`:

        v <- u - outer + d;   outer <- u + consensus / 2 * (y - u) + outer_momentum * v;   d <- outer - u

    `own` is u, `partner` is y, and both are overwritten. None: there is no partner, and y is u. At the start, for a
    joiner and after a refound d is zero. A skipped round moves neither. The mean over all replicas takes Nesterov's
    step, whoever met whom, where all that is sent arrives as it was."""
    outer.sub_(own)
    momentum.sub_(outer).mul_(outer_momentum)
    if partner is not None:
        momentum.add_(partner.sub_(own).mul_(0.5 * consensus))
    outer.copy_(own).add_(momentum)


def sgd_(outer: Tensor, mean_params: Tensor, *, outer_lr: float) -> None:
    """outer <- outer - outer_lr * (outer - mean(params)); with outer_lr = 1 exactly the mean. `mean_params` is
    overwritten."""
    if outer_lr == 1.0:
        outer.copy_(mean_params)
        return
    mean_params.sub_(outer).mul_(outer_lr)
    outer.add_(mean_params)


def descend_(outer: Tensor, gradient: Tensor, *, outer_lr: float) -> None:
    """outer <- outer - outer_lr * g. `gradient` is the group's mean pseudo-gradient and is overwritten."""
    outer.sub_(gradient.mul_(outer_lr))


def nesterov_(outer: Tensor, momentum: Tensor, gradient: Tensor, *, outer_lr: float, outer_momentum: float) -> None:
    """Nesterov's step as `torch.optim.SGD(nesterov=True)` defines it, without its fused forms:

        m <- outer_momentum * m + g;   outer <- outer - outer_lr * (g + outer_momentum * m)

    `gradient` is the group's mean pseudo-gradient and is overwritten."""
    for part in blocks(outer.numel()):
        mean, speed = gradient[part], momentum[part]
        speed.mul_(outer_momentum).add_(mean)
        mean.add_(speed.mul(outer_momentum)).mul_(outer_lr)
        outer[part].sub_(mean)


def pseudo_gradient_(params: Tensor, outer: Tensor, share: float) -> Tensor:
    """(outer - params) * share, written into `params`, which is returned: a gradient, to be subtracted."""
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
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) and torch.isfinite(high))
