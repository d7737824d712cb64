"""The inner optimizer and its learning rate.

They work on flat vectors. Constructing an optimizer of torch.optim imports the compiler, which costs every trainer
process time and memory. The kernel that it would call is therefore called here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.run.sections import OptimizerSection, Schedule

EPS = 1e-8
FRESH_STEPS = 10
"""Steps over which a fresh optimizer's learning rate rises, as its second moment is not reliable yet."""
TILE = 2**18
"""Elements that stay in cache while one tile is updated (CPU)."""


def schedule(
    progress: float, warmup: float, final: float, shape: Schedule = "cosine", decay_fraction: float = 0.2
) -> float:
    """Return the factor of the peak learning rate at `progress` in [0, 1] of the run.

    It rises linearly up to `warmup`, and is `final` from 1 on. `cosine` (arXiv 1608.03983) and `linear` fall all the
    way between. `wsd` (warmup-stable-decay, arXiv 2404.06395) stays at 1 until the last `decay_fraction` of the run,
    where it falls as 1 - sqrt (arXiv 2405.18392)."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if warmup >= 1.0:
        return 1.0
    begin = max(warmup, 1.0 - decay_fraction) if shape == "wsd" else warmup
    if begin >= 1.0:
        return 1.0 if progress < 1.0 else final
    return final + (1.0 - final) * _left(shape, max(0.0, (progress - begin) / (1.0 - begin)))


def _left(shape: Schedule, fall: float) -> float:
    """Return the part of the height that is left when `fall` in [0, 1] of the way down is done."""
    match shape:
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * fall))
        case "linear":
            return 1.0 - fall
        case "wsd":
            return 1.0 - math.sqrt(fall)


def progress_of(round_: int, step: int, steps_per_round: float | None, total_rounds: int) -> float:
    """Return how far the run is, in [0, 1]. `steps_per_round` None: rounds are in seconds, and count as half done."""
    within = 0.5 if steps_per_round is None else step / steps_per_round
    return min(1.0, (round_ + within) / total_rounds)


@dataclass(frozen=True, slots=True)
class _DecayGroup:
    """Tensors that share one weight decay, as the fused kernel takes them."""

    places: list[int]
    """Their numbers among all tensors."""
    weight_decay: float
    params: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]


class AdamW:
    """AdamW (arXiv 1711.05101) with bias correction, over a flat fp32 vector of which the tensors are views.

    torch's fused kernel reads and writes each value once. Where it is missing, an equal update in tiles that stay in
    cache does the same."""

    def __init__(
        self,
        params: Tensor,
        views: Sequence[Tensor],
        decayed: Sequence[bool],
        config: OptimizerSection,
        fused: bool | None = None,
    ) -> None:
        """`views`: all of `params`, in the order of the gradients. `decayed`: whether weight decay applies to them.

        `fused`: whether to use torch's kernel. None: where there is one."""
        self._config = config
        self.exp_avg = torch.zeros_like(params)
        self.exp_avg_sq = torch.zeros_like(params)
        self.age = 0
        """Updates made since the optimizer was fresh."""
        self.fused = has_fused(params.device) if fused is None else fused
        self._device = params.device
        self._age = torch.zeros((), device=params.device)
        self._divisor = torch.ones((), device=params.device)
        base = params.storage_offset()
        means, squares = (
            [flat.as_strided(view.shape, view.stride(), view.storage_offset() - base) for view in views]
            for flat in (self.exp_avg, self.exp_avg_sq)
        )
        self._groups = []
        for decays, weight_decay in ((True, config.weight_decay), (False, 0.0)):
            places = [place for place, given in enumerate(decayed) if given is decays]
            cut = ([tensors[place] for place in places] for tensors in (views, means, squares))
            self._groups.append(_DecayGroup(places, weight_decay, *cut))

    @property
    def reason(self) -> str:
        """Reason why the update is made as it is, for a person."""
        if self.fused:
            return "AdamW: torch's fused kernel"
        return f"AdamW: in tiles, as torch has no fused kernel for {self._device.type}"

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
    def step(self, grads: Sequence[Tensor], lr: float, divisor: float = 1.0) -> None:
        """Make one update with the gradients over `divisor`. They are divided in place."""
        self.age += 1
        update = self._fused if self.fused else self._tiled
        for group in self._groups:
            if group.places:
                update(group, [grads[place] for place in group.places], lr, divisor)

    def _fused(self, group: _DecayGroup, grads: list[Tensor], lr: float, divisor: float) -> None:
        torch._fused_adamw_(
            group.params,
            grads,
            group.exp_avg,
            group.exp_avg_sq,
            [],
            [self._age.fill_(self.age)] * len(grads),
            lr=lr,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            weight_decay=group.weight_decay,
            eps=EPS,
            amsgrad=False,
            maximize=False,
            grad_scale=None if divisor == 1.0 else self._divisor.fill_(divisor),
        )

    def _tiled(self, group: _DecayGroup, grads: list[Tensor], lr: float, divisor: float) -> None:
        config = self._config
        correction1 = 1.0 - config.beta1**self.age
        correction2 = math.sqrt(1.0 - config.beta2**self.age)
        for tensors in zip(group.params, group.exp_avg, group.exp_avg_sq, grads, strict=True):
            tile = TILE if self._device.type == "cpu" else max(1, tensors[0].numel())
            for param, mean, square, g in zip(*(torch.split(t.view(-1), tile) for t in tensors), strict=True):
                if divisor != 1.0:
                    g.div_(divisor)
                param.mul_(1.0 - lr * group.weight_decay)
                mean.lerp_(g, 1.0 - config.beta1)
                square.mul_(config.beta2).addcmul_(g, g, value=1.0 - config.beta2)
                root = square.sqrt().div_(correction2).add_(EPS)
                param.addcdiv_(mean, root, value=-lr / correction1)


def has_fused(device: torch.device) -> bool:
    """Return whether torch has its fused AdamW kernel for this device."""
    one = torch.zeros(1, device=device)
    try:
        AdamW(one, [one], [True], OptimizerSection(), fused=True).step([torch.zeros_like(one)], 0.0)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True
