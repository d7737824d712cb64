"""Copies of the built-in llama that learn next to each other: the first dimension of every tensor is the copy.

One product of matrices then serves all copies. The network is that of `peer.trainer.models.llama`, and the optimizer is
the product's. A test compares both with the product's trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from peer.run.sections import LlamaSection, OptimizerSection
from peer.trainer.models.factory import decays
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import _rotary, _rotate, empty_model, layout_of
from peer.trainer.optimizer import AdamW

EVAL_WINDOWS = 32
"""Windows of the hold-out that go through all copies at once."""


class StackedLlama:
    """The networks of all copies, computed together. `params`: [copies, elements] fp32; the tensors are views of it."""

    def __init__(self, config: LlamaSection, params: Tensor) -> None:
        self._config = config
        self._copies = len(params)
        self.tensors: dict[str, Tensor] = {}
        """Leaves of the graph, [copies, ...], in the order of the layout."""
        at = 0
        for spec in layout_of(config).tensors:
            part = params[:, at : at + spec.elements].view(self._copies, *spec.shape)
            self.tensors[spec.name] = part.detach().requires_grad_()
            at += spec.elements
        offsets = torch.arange(self._copies, device=params.device) * config.vocab_size
        self._offsets = offsets.view(-1, 1, 1)

    def losses(self, windows: Tensor) -> Tensor:
        """Return the mean loss of each copy, [copies]. `windows`: [copies, windows, context + 1] int64."""
        return self._each(windows).view(self._copies, -1).mean(1)

    def window_losses(self, windows: Tensor) -> Tensor:
        """Return the loss of each copy and window, [copies, windows]."""
        return self._each(windows).view(*windows.shape[:2], -1).mean(2)

    def _each(self, windows: Tensor) -> Tensor:
        logits = self._logits(windows[..., :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[..., 1:].flatten(), reduction="none")

    def _logits(self, tokens: Tensor) -> Tensor:
        """Return the logits, [copies, windows * context, vocabulary]."""
        table = self.tensors["model.embed_tokens.weight"]
        rows = (tokens + self._offsets).flatten(1)
        x = F.embedding(rows, table.flatten(0, 1))
        for layer in range(self._config.num_hidden_layers):
            x = self._block(x, f"model.layers.{layer}", tokens.shape)
        return torch.bmm(self._norm(x, "model.norm"), table.transpose(1, 2))

    def _block(self, x: Tensor, name: str, shape: Sequence[int]) -> Tensor:
        x = x + self._attention(self._norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", shape)
        y = self._norm(x, f"{name}.post_attention_layernorm")
        gate = F.silu(self._linear(y, f"{name}.mlp.gate_proj"))
        return x + self._linear(gate * self._linear(y, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")

    def _attention(self, x: Tensor, name: str, shape: Sequence[int]) -> Tensor:
        copies, windows, context = shape
        config = self._config
        dim = config.hidden_size // config.num_attention_heads
        cos, sin = _rotary(context, dim, config.rope_theta, x.device)
        q, k, v = (
            self._linear(x, f"{name}.{part}_proj").view(copies * windows, context, -1, dim).transpose(1, 2)
            for part in "qkv"
        )
        shared = config.num_attention_heads // config.num_key_value_heads
        k, v = (part.repeat_interleave(shared, dim=1) if shared > 1 else part for part in (k, v))
        mixed = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        return self._linear(mixed.transpose(1, 2).reshape(x.shape), f"{name}.o_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return torch.bmm(x, self.tensors[f"{name}.weight"].transpose(1, 2))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self._config.rms_norm_eps) * self.tensors[f"{name}.weight"].unsqueeze(1)


class StackedTrainer:
    """Trains all copies, each with an inner optimizer of its own. A merge may write to `params`; the optimizers'
    moments are not affected."""

    def __init__(self, config: LlamaSection, params: Tensor, optimizers: Sequence[OptimizerSection]) -> None:
        """`params`: [copies, elements], which are trained in place. `optimizers`: one for each copy."""
        self.config, self.params = config, params
        self._network = StackedLlama(config, self.params)
        self._clips = [one.clip for one in optimizers]
        layout, decayed = layout_of(config), decays(empty_model(config))
        self._optimizers = [
            AdamW(row, [view for _, view in views_of(row, layout)], decayed, one)
            for row, one in zip(self.params, optimizers, strict=True)
        ]

    def step(
        self, windows: Tensor, rates: Sequence[float], together: Callable[[list[Tensor]], None] = lambda grads: None
    ) -> None:
        """Make one inner step. `rates`: the learning rate of each copy, before a fresh optimizer's factor. `together`
        may change the gradients, each [copies, ...], before they are clipped."""
        grads = self.gradients(windows)
        together(grads)
        self.update(grads, rates)

    def gradients(self, windows: Tensor) -> list[Tensor]:
        """Return the gradients of each copy's mean loss, each [copies, ...]."""
        loss = self._network.losses(windows).sum()
        return [one.contiguous() for one in torch.autograd.grad(loss, list(self._network.tensors.values()))]

    def update(self, grads: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Make one optimizer step for each copy. A copy whose gradient is not finite keeps its params."""
        norms = lengths(grads).tolist()
        for copy, (optimizer, rate, clip, norm) in enumerate(
            zip(self._optimizers, rates, self._clips, norms, strict=True)
        ):
            if math.isfinite(norm):
                divisor = max(1.0, (norm + 1e-6) / clip)
                optimizer.step([one[copy] for one in grads], rate * optimizer.freshness, divisor)

    def moments(self) -> tuple[Tensor, Tensor, list[int]]:
        """Return what `restore` takes: both moments, each [copies, elements], and the ages of the optimizers."""
        means = torch.stack([one.exp_avg for one in self._optimizers])
        squares = torch.stack([one.exp_avg_sq for one in self._optimizers])
        return means, squares, [one.age for one in self._optimizers]

    def restore(self, means: Tensor, squares: Tensor, ages: Sequence[int]) -> None:
        """Restore the moments that `moments` returned. Params are not included."""
        for optimizer, mean, square, age in zip(self._optimizers, means, squares, ages, strict=True):
            optimizer.restore(mean, square, age)


def lengths(grads: Sequence[Tensor]) -> Tensor:
    """Return the norm of each copy's gradient, [copies]."""
    each: Tensor = torch.stack([one.flatten(1).norm(dim=1) for one in grads])
    total: Tensor = each.norm(dim=0)
    return total


@torch.no_grad()
def losses_of(config: LlamaSection, params: Tensor, holdout: Tensor) -> list[float]:
    """Return the loss of each row of `params`, [rows, elements], on the same windows, [windows, context + 1] int64."""
    network, total = StackedLlama(config, params), torch.zeros(len(params), dtype=torch.float64)
    for part in torch.split(holdout, EVAL_WINDOWS):
        total += network.losses(part.expand(len(params), *part.shape)).double() * len(part)
    return [float(one) for one in total / len(holdout)]
