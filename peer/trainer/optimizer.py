"""The inner optimizers, AdamW and Muon, over flat vectors.

They replace those of torch.optim, because constructing one of those imports torch's compiler, which costs every trainer
process seconds and memory. They call the same fused kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.run.sections import OptimizerSection

EPS = 1e-8
FRESH_STEPS = 10
"""Steps over which a fresh optimizer's learning rate rises, because its second moment is not reliable yet."""
TILE = 2**18
"""Elements of a tile of the update on the CPU, chosen so that the tile stays in cache."""
ORTHOGONALIZING = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, those of `torch.optim.Muon`."""
ITERATIONS = 5
"""Iterations of `orthogonal`."""
MATCHED_RMS = 0.2
"""Approximate root mean square of AdamW's updates. Muon's updates are scaled to it (arXiv 2502.16982), so that the same
learning rate and weight decay suit both."""
LEAST_NORM = 1e-7


@dataclass(frozen=True, slots=True)
class _DecayGroup:
    """The tensors of one weight decay, which the fused kernel updates in one call."""

    places: list[int]
    """Indices among all tensors."""
    weight_decay: float
    params: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]


class AdamW:
    """AdamW (arXiv 1711.05101) with bias correction, over a flat fp32 vector of which the tensors are views.

    It uses torch's fused kernel, which reads and writes each value once. Where that is missing, the same update runs
    over tiles that stay in cache."""

    def __init__(
        self,
        params: Tensor,
        views: Sequence[Tensor],
        decayed: Sequence[bool],
        config: OptimizerSection,
        fused: bool | None = None,
        spared: Sequence[bool] = (),
    ) -> None:
        """`views`: the tensors of `params`, in the order of the gradients. `decayed`: per view, whether weight decay
        applies.

        `fused`: whether to use torch's kernel; None: where the device has one. `spared`: per view, whether AdamW leaves
        it out, for a subclass to update; it then has no second moment. Empty: none is left out."""
        self._config = config
        spared = spared or [False] * len(views)
        self.exp_avg, means = _packed(params, views, [True] * len(views))
        self.exp_avg_sq, squares = _packed(params, views, [not spare for spare in spared])
        self.age = 0
        """Number of updates made."""
        self.fused = has_fused(params.device) if fused is None else fused
        self._device = params.device
        self._age = torch.zeros((), device=params.device)
        self._divisor = torch.ones((), device=params.device)
        self._means = means
        self._groups = []
        for decays, weight_decay in ((True, config.weight_decay), (False, 0.0)):
            places = [place for place, given in enumerate(decayed) if given is decays and not spared[place]]
            cut = ([tensors[place] for place in places] for tensors in (views, means, squares))
            self._groups.append(_DecayGroup(places, weight_decay, *cut))

    @property
    def reason(self) -> str:
        """Which implementation makes the update and why, for a person."""
        if self.fused:
            return "AdamW: torch's fused kernel"
        return f"AdamW: in tiles, as torch has no fused kernel for {self._device.type}"

    @property
    def freshness(self) -> float:
        """Factor on the next step's learning rate. It rises to 1 over the first `FRESH_STEPS` steps."""
        return min(1.0, (self.age + 1) / FRESH_STEPS)

    def restore(self, exp_avg: Tensor, exp_avg_sq: Tensor, age: int) -> None:
        """Set moments and age to those of a checkpoint."""
        self.exp_avg.copy_(exp_avg)
        self.exp_avg_sq.copy_(exp_avg_sq)
        self.age = age

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], lr: float, divisor: float = 1.0) -> None:
        """Make one update with the gradients divided by `divisor`. The gradients may be changed in place."""
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


class Muon(AdamW):
    """Muon for the matrices of the blocks, AdamW for embeddings, head, norms and all other tensors.

    MuLoCo (arXiv 2505.23725) trains with it. The update equals that of `torch.optim.Muon`. For a matrix W of A x B with
    gradient G:

        M <- momentum * M + (1 - momentum) * G
        U <- (1 - momentum) * G + momentum * M
        W <- W - lr * weight_decay * W - lr * 0.2 * sqrt(max(A, B)) * orthogonal(U)

    M is stored in the place of AdamW's first moment. A matrix needs no second moment, which saves a quarter of the
    memory of its values, gradient and moments."""

    def __init__(
        self,
        params: Tensor,
        views: Sequence[Tensor],
        decayed: Sequence[bool],
        config: OptimizerSection,
        hidden: Sequence[bool],
    ) -> None:
        """`hidden`: per view, whether it is a matrix of a block, which Muon updates. The rest as for `AdamW`."""
        super().__init__(params, views, decayed, config, spared=hidden)
        self._matrices = [place for place, given in enumerate(hidden) if given]
        self._views = views
        self._decayed = decayed

    @property
    def reason(self) -> str:
        return f"Muon for {len(self._matrices)} matrices of the blocks, for the rest {super().reason}"

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], lr: float, divisor: float = 1.0) -> None:
        super().step(grads, lr, divisor)
        momentum = self._config.muon_momentum
        for place in self._matrices:
            matrix, grad, mean = self._views[place], grads[place], self._means[place]
            if divisor != 1.0:
                grad.div_(divisor)
            mean.lerp_(grad, 1.0 - momentum)
            update = orthogonal(grad.lerp_(mean, momentum))
            if self._decayed[place]:
                matrix.mul_(1.0 - lr * self._config.weight_decay)
            matrix.add_(update, alpha=-lr * MATCHED_RMS * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """Return an approximately orthogonal matrix with the same singular vectors and singular values of about 0.7 to 1.2.

    Makes `ITERATIONS` steps of the iteration of Keller Jordan's Muon, from X = matrix / |matrix|:

        X <- a X + (b X X^T + c (X X^T)^2) X

    On an accelerator they run in bf16, as in torch; on a CPU in the matrix's own precision, which costs no more."""
    a, b, c = ORTHOGONALIZING
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else matrix.dtype)
    tall = matrix.shape[0] > matrix.shape[1]
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


def _packed(params: Tensor, views: Sequence[Tensor], kept: Sequence[bool]) -> tuple[Tensor, list[Tensor]]:
    """Return a flat tensor of zeros for the `kept` views, packed in their memory order, and for each view its part of
    that tensor. The part of a view that is not kept is empty."""
    flat = params.new_zeros(sum(view.numel() for view, keep in zip(views, kept, strict=True) if keep))
    parts, at = [flat[:0]] * len(views), 0
    for place in sorted(range(len(views)), key=lambda place: views[place].storage_offset()):
        if kept[place]:
            view = views[place]
            parts[place] = flat[at : at + view.numel()].view(view.shape)
            at += view.numel()
    return flat, parts


def has_fused(device: torch.device) -> bool:
    """Return whether torch has its fused AdamW kernel for this device."""
    one = torch.zeros(1, device=device)
    try:
        AdamW(one, [one], [True], OptimizerSection(), fused=True).step([torch.zeros_like(one)], 0.0)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True
