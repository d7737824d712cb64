"""A small model that really learns, and its trainer in virtual time. Simulations with it show how well a method trains.

The model predicts the next of sixteen symbols from the two before it. Its data is drawn from a teacher, a fixed random
Markov chain, so the expected loss over all of the teacher's output is computed exactly, without sampling. Tensor names
and blocks are those of the real model, so that the model is cut into fragments in the same ways.

    layout = peer.protocol.model.fragments.cut(TENSORS, fragments=2, pattern="strided")
    trainer = TinyTrainer(layout, clock, step_seconds=0.1, seed=7, data="peer 3")
    await trainer.start(first_params(7, layout), 0, None)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

from peer.lab.sim.probing import SYMBOLS
from peer.lab.sim.trainer import VirtualTrainer
from peer.outer.arithmetic import merge_
from peer.ports.clock import Clock
from peer.ports.trainer import Evaluation
from peer.protocol.model.layout import Layout, TensorSpec

Floats = NDArray[np.float32]
Batch = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

WIDTH, HIDDEN, BLOCKS, BATCH = 16, 32, 4, 16
SHARPNESS = 2.0
"""Standard deviation of the teacher's logits. The teacher's entropy is then about half of that of a uniform
distribution."""
ONE_HOT: Floats = np.eye(SYMBOLS, dtype=np.float32)
WINDOWS, WINDOW = 16, 128
"""Number of windows of a probe, and symbols in each."""
DRAWN = 64
"""Number of batches drawn at once."""
LR, BETA1, BETA2, EPS = 6e-3, 0.9, 0.99, 1e-8

Domain = tuple[int, int]
"""(part, parts): the trainer sees one of `parts` equal parts of all pairs of preceding symbols. Stands for texts of one
domain."""
WHOLE: Domain = (0, 1)


def _block(number: int) -> list[TensorSpec]:
    name = f"model.layers.{number}.mlp"
    return [
        TensorSpec(f"{name}.up_proj.weight", (HIDDEN, WIDTH)),
        TensorSpec(f"{name}.down_proj.weight", (WIDTH, HIDDEN)),
    ]


TENSORS: tuple[TensorSpec, ...] = (
    TensorSpec("model.embed_tokens.weight", (SYMBOLS, WIDTH)),
    *(tensor for number in range(BLOCKS) for tensor in _block(number)),
    TensorSpec("lm_head.weight", (SYMBOLS, WIDTH)),
)
"""The tensors in the order of the model, 4608 elements in all."""


def first_params(seed: int, layout: Layout) -> torch.Tensor:
    """Return the first outer_params of a run: flat fp32 in the layout's order. The values of a tensor do not depend on
    that order."""
    flat = torch.empty(layout.elements)
    views, noise = _views(flat.numpy(), layout), np.random.default_rng([seed, 1])
    for spec in TENSORS:
        views[spec.name][...] = noise.normal(0.0, 1.0 / math.sqrt(spec.shape[1]), spec.shape)
    return flat


@lru_cache(maxsize=4)
def teacher(seed: int) -> NDArray[np.float64]:
    """Return the teacher's probabilities of the next symbol, [SYMBOLS * SYMBOLS, SYMBOLS]. Rows: (last but one, last)
    symbol."""
    logits = np.random.default_rng([seed, 0]).normal(0.0, SHARPNESS, (SYMBOLS**2, SYMBOLS))
    odds = np.exp(logits)
    return np.asarray(odds / odds.sum(1, keepdims=True))


def other_targets(seed: int) -> NDArray[np.int64]:
    """Return a permutation of the symbols without a fixed point. A trainer with it learns wrong targets."""
    order = np.random.default_rng([seed, 2]).permutation(SYMBOLS)
    targets = np.empty_like(order)
    targets[order] = np.roll(order, 1)
    return targets


@lru_cache(maxsize=256)
def _drawn(seed: int, data: str, round_: int, block: int, domain: Domain = WHOLE) -> Batch:
    """Draw `DRAWN` batches from the teacher: last but one, last and next symbol, each [DRAWN, BATCH]."""
    key = blake3(f"{seed}\0{data}\0{round_}\0{block}".encode()).digest(16)
    random = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
    part, parts = domain
    width = SYMBOLS**2 // parts
    pairs = part * width + random.integers(0, width, (DRAWN, BATCH))
    sums = teacher(seed).cumsum(1)
    dice = random.random((DRAWN, BATCH, 1)) * sums[0, -1]
    following = np.minimum((sums[pairs] < dice).sum(2), SYMBOLS - 1)
    return pairs // SYMBOLS, pairs % SYMBOLS, following


def _views(flat: Floats, layout: Layout) -> dict[str, Floats]:
    """Return a view into `flat` for each tensor of the layout."""
    views, at = {}, 0
    for spec in layout.tensors:
        views[spec.name] = flat[at : at + spec.elements].reshape(spec.shape)
        at += spec.elements
    return views


def _forward(weights: dict[str, Floats], before: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return the logits [batch, SYMBOLS], and the values for the backward pass: each block's input and hidden values,
    and the output of the last block."""
    embed = weights["model.embed_tokens.weight"]
    x = embed[last] + _turned(embed[before])
    kept = []
    for number in range(BLOCKS):
        hidden = np.maximum(x @ weights[f"model.layers.{number}.mlp.up_proj.weight"].T, 0.0)
        kept.append((x, hidden))
        x = x + hidden @ weights[f"model.layers.{number}.mlp.down_proj.weight"].T
    return x @ weights["lm_head.weight"].T, (kept, x)


def _turned(x: Floats) -> Floats:
    """Swap the halves of each embedding [batch, WIDTH], which marks it as that of the older symbol. Its own inverse."""
    return np.concatenate((x[:, WIDTH // 2 :], x[:, : WIDTH // 2]), 1)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def loss_of(params: torch.Tensor, layout: Layout, seed: int) -> float:
    """Return the exact expected loss in nats per symbol over all output of the run's teacher. `params`: flat fp32."""
    before, last = np.divmod(np.arange(SYMBOLS**2), SYMBOLS)
    logits, _ = _forward(_views(params.numpy(), layout), before, last)
    return float(-(teacher(seed) * _log_softmax(logits)).sum(1).mean())


def window_losses(params: torch.Tensor, layout: Layout, seed: int, drawn: int) -> tuple[float, ...]:
    """Return the mean loss of each of `WINDOWS` windows of the teacher's output, in nats per symbol. `drawn`: the seed
    of the windows."""
    before, last = np.divmod(np.arange(SYMBOLS**2), SYMBOLS)
    losses = -_log_softmax(_forward(_views(params.numpy(), layout), before, last)[0])
    random = np.random.Generator(np.random.PCG64(drawn))
    pairs = random.integers(0, SYMBOLS**2, (WINDOWS, WINDOW))
    sums = teacher(seed).cumsum(1)
    dice = random.random((WINDOWS, WINDOW, 1)) * sums[0, -1]
    following = np.minimum((sums[pairs] < dice).sum(2), SYMBOLS - 1)
    return tuple(losses[pairs, following].mean(1).tolist())


def least_loss(seed: int) -> float:
    """Return the teacher's entropy in nats per symbol, the lowest loss that a model can reach."""
    odds = teacher(seed)
    return float(-(odds * np.log(odds)).sum(1).mean())


class TinyLoop:
    """Inner steps with Adam and a linear warm-up of ten steps, as in `peer.trainer.inner_loop.InnerLoop`. A step is a
    function of the params, the optimizer's moments and its batch; the batch is a function of (run seed, data name,
    round, step in the round)."""

    def __init__(
        self,
        layout: Layout,
        params: torch.Tensor,
        *,
        seed: int,
        data: str,
        targets: NDArray[np.int64] | None = None,
        domain: Domain = WHOLE,
        lr: float = LR,
        more: Sequence[str] = (),
    ) -> None:
        """params: flat fp32 in the layout's order, copied. data: name of the peer whose batches are drawn. targets: the
        symbol learnt in place of each symbol; None: the true one. domain: the part of the data that is drawn from.
        more: further peers whose batches every step takes too; the mean of the gradients is applied."""
        assert {spec.name for spec in layout.tensors} == {spec.name for spec in TENSORS}, layout
        self._layout, self._seed, self._targets = layout, seed, targets
        self._domain, self._lr = domain, lr
        self._sources = (data, *more)
        self.params = params.clone()
        self._flat: Floats = self.params.numpy()
        self._grad, self._room = np.zeros_like(self._flat), np.empty_like(self._flat)
        self._weights, self._grads = _views(self._flat, layout), _views(self._grad, layout)
        self.mean, self.square = np.zeros_like(self._flat), np.zeros_like(self._flat)
        self.age = np.zeros(1, np.int64)
        self.round = self.step_in_round = 0
        self.lr_scale = 1.0

    def scale_lr(self, scale: float) -> None:
        self.lr_scale = scale

    def move_to(self, round_: int, step: int) -> None:
        self.round, self.step_in_round = round_, step

    def merge(self, fragment: int, outer_params: torch.Tensor, alpha: float) -> None:
        """Merge one fragment, as `peer.outer.arithmetic.merge_` does. The optimizer's moments stay as they are."""
        start, end = self._layout.fragment_span(fragment)
        merge_(self.params[start:end], outer_params, alpha)

    def step(self) -> float:
        """Take one inner step. Return the mean loss of its batches before the step, in nats per symbol."""
        loss = self._backward(*self._batch(self._sources[0]))
        if len(self._sources) > 1:
            total = self._grad.copy()
            for source in self._sources[1:]:
                loss += self._backward(*self._batch(source))
                total += self._grad
            np.divide(total, np.float32(len(self._sources)), out=self._grad)
        self._adam()
        self.step_in_round += 1
        return loss / len(self._sources)

    def _batch(self, source: str) -> Batch:
        block, row = divmod(self.step_in_round, DRAWN)
        drawn = _drawn(self._seed, source, self.round, block, self._domain)
        before, last, following = (part[row] for part in drawn)
        return before, last, following if self._targets is None else self._targets[following]

    def _backward(self, before: NDArray[np.int64], last: NDArray[np.int64], following: NDArray[np.int64]) -> float:
        weights, grads, rows = self._weights, self._grads, np.arange(BATCH)
        logits, (kept, x) = _forward(weights, before, last)
        logs = _log_softmax(logits)
        slope = np.exp(logs)
        slope[rows, following] -= 1.0
        slope /= BATCH
        grads["lm_head.weight"][...] = slope.T @ x
        back = slope @ weights["lm_head.weight"]
        for number in reversed(range(BLOCKS)):
            name = f"model.layers.{number}.mlp"
            x, hidden = kept[number]
            grads[f"{name}.down_proj.weight"][...] = back.T @ hidden
            inner = (back @ weights[f"{name}.down_proj.weight"]) * (hidden > 0)
            grads[f"{name}.up_proj.weight"][...] = inner.T @ x
            back = back + inner @ weights[f"{name}.up_proj.weight"]
        embed = grads["model.embed_tokens.weight"]
        np.matmul(ONE_HOT[last].T, back, out=embed)
        embed += ONE_HOT[before].T @ _turned(back)
        return float(-logs[rows, following].mean())

    def _adam(self) -> None:
        self.age += 1
        age = int(self.age[0])
        warm = min(1.0, age / 10)
        grad, mean, square, room = self._grad, self.mean, self.square, self._room
        np.subtract(grad, mean, out=room)
        room *= np.float32(1.0 - BETA1)
        mean += room
        grad *= grad
        grad -= square
        grad *= np.float32(1.0 - BETA2)
        square += grad
        rate = self._lr * warm * self.lr_scale * math.sqrt(1.0 - BETA2**age) / (1.0 - BETA1**age)
        np.sqrt(square, out=room)
        room += np.float32(EPS)
        np.divide(mean, room, out=room)
        room *= np.float32(rate)
        self._flat -= room


class TinyTrainer(VirtualTrainer):
    """The `Trainer` port around `TinyLoop`. All peers of a run have the same `seed`, which makes the teacher, and each
    its own `data`. The results are a function of the arguments and of the merged params.

    layout: a layout of `TENSORS`, in any order and cut. step_seconds: duration of an inner step. targets, domain, lr,
    more: see `TinyLoop`."""

    kind = "tiny"

    def __init__(
        self,
        layout: Layout,
        clock: Clock,
        *,
        step_seconds: float,
        seed: int = 0,
        data: str = "",
        targets: NDArray[np.int64] | None = None,
        domain: Domain = WHOLE,
        lr: float = LR,
        more: Sequence[str] = (),
    ) -> None:
        super().__init__(layout, clock, step_seconds=step_seconds, tokens_per_step=BATCH * (1 + len(more)))
        self._seed, self._data, self._targets, self._more = seed, data, targets, more
        self._domain, self._lr = domain, lr
        self._loop: TinyLoop

    def _reset(self, params: torch.Tensor) -> None:
        self._loop = TinyLoop(
            self._layout,
            params,
            seed=self._seed,
            data=self._data,
            targets=self._targets,
            domain=self._domain,
            lr=self._lr,
            more=self._more,
        )

    def _params(self) -> torch.Tensor:
        return self._loop.params

    def _train(self, steps: int) -> float:
        self._loop.move_to(self.round, self.step_in_round)
        return sum(self._loop.step() for _ in range(steps))

    def _measure(self, params: torch.Tensor) -> Evaluation:
        """Return the exact loss over all output of the teacher."""
        loss = loss_of(params, self._layout, self._seed)
        return Evaluation(loss, loss / math.log(2), SYMBOLS**2)

    def _window_losses(self, params: torch.Tensor, seed: int) -> tuple[float, ...]:
        return window_losses(params, self._layout, self._seed, seed)

    def _moments(self) -> dict[str, torch.Tensor]:
        loop = self._loop
        moments = {"mean": loop.mean, "square": loop.square, "age": loop.age}
        return {name: torch.from_numpy(moment) for name, moment in moments.items()}

    def _scale_lr(self, scale: float) -> None:
        super()._scale_lr(scale)
        self._loop.scale_lr(scale)
