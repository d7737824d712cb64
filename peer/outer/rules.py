"""Outer rules, in place, fp32, no temporary larger than a fragment. Shapes: every tensor is flat, of the fragment's
length. fp32 operations are rounded one by one: no fused and no `alpha=` forms."""

from __future__ import annotations

import torch
from torch import Tensor


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


def sgd_(outer: Tensor, mean_params: Tensor, *, outer_lr: float) -> None:
    """outer <- outer - outer_lr * (outer - mean(params)); with outer_lr = 1 exactly the mean. `mean_params` is
    overwritten."""
    if outer_lr == 1.0:
        outer.copy_(mean_params)
        return
    mean_params.sub_(outer).mul_(outer_lr)
    outer.add_(mean_params)


def scale_work_(params: Tensor, outer: Tensor, share: float) -> None:
    """params <- outer + share * (params - outer): keeps `share` of the work since the base. For work that piled up over
    skipped rounds; sent whole, such a stale pseudo-gradient undoes a run."""
    assert 0 < share <= 1, share
    if share < 1:
        params.sub_(outer).mul_(share).add_(outer)


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite, without a temporary: a sum of squares would overflow on large values, the
    extremes do not."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) and torch.isfinite(high))
