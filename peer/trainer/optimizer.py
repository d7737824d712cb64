"""The inner optimizer and its learning rate.

They are written out on flat vectors. Constructing an optimizer of torch.optim imports the compiler, which costs every
trainer process time and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from peer.run.sections import OptimizerSection

EPS = 1e-8
FRESH_STEPS = 10
"""Steps over which a fresh optimizer's learning rate rises, as its second moment is not reliable yet."""
TILE = 2**18
"""Elements that stay in cache while one tile is updated (CPU)."""


def schedule(progress: float, warmup: float, final: float) -> float:
    """Return the factor of the peak learning rate at `progress` in [0, 1] of the run.

    It is linear up to `warmup`, then a cosine down to `final` at 1, and stays there."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if warmup >= 1.0:
        return 1.0
    fall = (progress - warmup) / (1.0 - warmup)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * fall))


def progress_of(round_: int, step: int, steps_per_round: float | None, total_rounds: int) -> float:
    """Return how far the run is, in [0, 1]. `steps_per_round` None: rounds are in seconds, and count as half done."""
    within = 0.5 if steps_per_round is None else step / steps_per_round
    return min(1.0, (round_ + within) / total_rounds)


class AdamW:
    """AdamW (arXiv 1711.05101) with bias correction, over a flat fp32 vector.

    Decay applies to `decayed` only: views of the matrices but the embedding."""

    def __init__(self, params: Tensor, decayed: Sequence[Tensor], config: OptimizerSection) -> None:
        self._config = config
        self._decayed = decayed
        self.exp_avg = torch.zeros_like(params)
        self.exp_avg_sq = torch.zeros_like(params)
        self.age = 0
        """Updates made since the optimizer was fresh."""
        tile = TILE if params.device.type == "cpu" else params.numel()
        self._tiles = [torch.split(t, tile) for t in (params, self.exp_avg, self.exp_avg_sq)]
        self._tile = tile

    @property
    def freshness(self) -> float:
        """Factor of the learning rate of the next step, below 1 in the first steps of a fresh optimizer."""
        return min(1.0, (self.age + 1) / FRESH_STEPS)

    def restore(self, exp_avg: Tensor, exp_avg_sq: Tensor, age: int) -> None:
        """Take the moments and the age of a save."""
        self.exp_avg.copy_(exp_avg)
        self.exp_avg_sq.copy_(exp_avg_sq)
        self.age = age

    @torch.no_grad()
    def step(self, grad: Tensor, lr: float) -> None:
        """Make one update. `grad` is flat, like params."""
        config = self._config
        self.age += 1
        correction1 = 1.0 - config.beta1**self.age
        correction2 = math.sqrt(1.0 - config.beta2**self.age)
        for matrix in self._decayed:
            matrix.mul_(1.0 - lr * config.weight_decay)
        for param, mean, square, g in zip(*self._tiles, torch.split(grad, self._tile), strict=True):
            mean.lerp_(g, 1.0 - config.beta1)
            square.mul_(config.beta2).addcmul_(g, g, value=1.0 - config.beta2)
            root = square.sqrt().div_(correction2).add_(EPS)
            param.addcdiv_(mean, root, value=-lr / correction1)
