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

Span = tuple[int, int]
"""First element of a part of the flat vector, and the one after its last."""


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


def spans_of(params: Tensor, decayed: Sequence[Tensor]) -> tuple[list[Span], list[Span]]:
    """Return the parts of the flat vector that weight decay applies to, and the others. Neighbours are joined.

    `decayed`: contiguous views of `params` that do not overlap."""
    base = int(params.storage_offset())
    inside: list[Span] = []
    starts = sorted((int(view.storage_offset()) - base, view.numel()) for view in decayed)
    for start, elements in starts:
        end = start + elements
        if inside and inside[-1][1] == start:
            inside[-1] = inside[-1][0], end
        else:
            inside.append((start, end))
    edges = [0, *(edge for span in inside for edge in span), params.numel()]
    outside = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
    return inside, outside


@dataclass(frozen=True, slots=True)
class _DecayGroup:
    """Parts of the flat vectors that share one weight decay, as the fused kernel takes them."""

    spans: list[Span]
    weight_decay: float
    params: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]


class AdamW:
    """AdamW (arXiv 1711.05101) with bias correction, over a flat fp32 vector.

    Decay applies to `decayed` only: views of the matrices but the embedding. torch's fused kernel reads and writes each
    value once. Where it is missing, an equal update in tiles that stay in cache does the same."""

    def __init__(
        self, params: Tensor, decayed: Sequence[Tensor], config: OptimizerSection, fused: bool | None = None
    ) -> None:
        """`fused`: whether to use torch's kernel. None: where there is one."""
        self._config = config
        self._params = params
        self.exp_avg = torch.zeros_like(params)
        self.exp_avg_sq = torch.zeros_like(params)
        self.age = 0
        """Updates made since the optimizer was fresh."""
        self.fused = has_fused(params.device) if fused is None else fused
        self._age = torch.zeros((), device=params.device)
        self._divisor = torch.ones((), device=params.device)
        self._groups = [
            self._group(spans, decay)
            for spans, decay in zip(spans_of(params, decayed), (config.weight_decay, 0.0), strict=True)
        ]

    def _group(self, spans: list[Span], weight_decay: float) -> _DecayGroup:
        return _DecayGroup(
            spans, weight_decay, *(_cut(flat, spans) for flat in (self._params, self.exp_avg, self.exp_avg_sq))
        )

    @property
    def reason(self) -> str:
        """Reason why the update is made as it is, for a person."""
        if self.fused:
            return "AdamW: torch's fused kernel"
        return f"AdamW: in tiles, as torch has no fused kernel for {self._params.device.type}"

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
    def step(self, grad: Tensor, lr: float, divisor: float = 1.0) -> None:
        """Make one update with `grad / divisor`. `grad` is flat, like params, and is divided in place."""
        self.age += 1
        if self.fused:
            self._step_fused(grad, lr, divisor)
        else:
            self._step_tiled(grad, lr, divisor)

    def _step_fused(self, grad: Tensor, lr: float, divisor: float) -> None:
        config = self._config
        self._age.fill_(self.age)
        self._divisor.fill_(divisor)
        for group in self._groups:
            if group.spans:
                torch._fused_adamw_(
                    group.params,
                    _cut(grad, group.spans),
                    group.exp_avg,
                    group.exp_avg_sq,
                    [],
                    [self._age] * len(group.spans),
                    lr=lr,
                    beta1=config.beta1,
                    beta2=config.beta2,
                    weight_decay=group.weight_decay,
                    eps=EPS,
                    amsgrad=False,
                    maximize=False,
                    grad_scale=None if divisor == 1.0 else self._divisor,
                )

    def _step_tiled(self, grad: Tensor, lr: float, divisor: float) -> None:
        config = self._config
        correction1 = 1.0 - config.beta1**self.age
        correction2 = math.sqrt(1.0 - config.beta2**self.age)
        if divisor != 1.0:
            grad.mul_(1.0 / divisor)
        for group in self._groups:
            for param in group.params:
                param.mul_(1.0 - lr * group.weight_decay)
        tile = TILE if grad.device.type == "cpu" else grad.numel()
        parts = (torch.split(flat, tile) for flat in (self._params, self.exp_avg, self.exp_avg_sq, grad))
        for param, mean, square, g in zip(*parts, strict=True):
            mean.lerp_(g, 1.0 - config.beta1)
            square.mul_(config.beta2).addcmul_(g, g, value=1.0 - config.beta2)
            root = square.sqrt().div_(correction2).add_(EPS)
            param.addcdiv_(mean, root, value=-lr / correction1)


def has_fused(device: torch.device) -> bool:
    """Return whether torch has its fused AdamW kernel for this device."""
    one = torch.zeros(1, device=device)
    try:
        AdamW(one, [], OptimizerSection(), fused=True).step(torch.zeros_like(one), 0.0)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


def _cut(flat: Tensor, spans: Sequence[Span]) -> list[Tensor]:
    return [flat[start:end] for start, end in spans]
