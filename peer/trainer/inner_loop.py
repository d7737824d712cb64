"""The inner loop: one model, its optimizer and its place in the run. It uses no process, no file and no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from peer.errors import ManifestError
from peer.outer.arithmetic import merge_
from peer.ports.trainer import Evaluation
from peer.protocol.learning_rate import progress_of, schedule
from peer.protocol.model.fragments import is_block_matrix
from peer.protocol.model.layout import Layout
from peer.protocol.round_lengths import slots_before, slots_of
from peer.protocol.schedule import RoundClock
from peer.trainer.batches import Batch, BatchStream
from peer.trainer.config import TrainerConfig
from peer.trainer.data import TrainingData
from peer.trainer.device import Device
from peer.trainer.evaluation import evaluate_holdout, weights_of
from peer.trainer.loss import TokenLoss, Windows
from peer.trainer.models.factory import bind, decays, empty_model
from peer.trainer.models.flat import views_of
from peer.trainer.models.language_model import LanguageModel
from peer.trainer.optimizer import AdamW, Muon

FIRST_SCALE = 2.0**16
GROW_AFTER = 2000
"""Steps without an overflow after which the loss scale is doubled."""


@dataclass(slots=True)
class LossScale:
    """Dynamic loss scaling for fp16 (arXiv 1710.03740).

    An overflow halves the scale; `GROW_AFTER` steps in a row without one double it."""

    value: float
    good_steps: int = 0
    """Steps without an overflow since the scale last changed."""

    def restore(self, value: float, good_steps: int) -> None:
        self.value, self.good_steps = value, good_steps

    def update(self, finite: bool) -> None:
        if not finite:
            self.value, self.good_steps = max(1.0, self.value / 2), 0
            return
        self.good_steps += 1
        if self.good_steps >= GROW_AFTER:
            self.value, self.good_steps = self.value * 2, 0


class InnerLoop:
    """Trains the run's model with the inner optimizer, one step per call.

    `params` are the live parameters as one flat fp32 vector, of which the model's tensors are views. Autograd allocates
    the gradients anew in each step, and they stay until the next step frees them."""

    def __init__(
        self,
        config: TrainerConfig,
        layout: Layout,
        device: Device,
        data: TrainingData,
        params: Tensor,
        on_batch: Callable[[int, int, Batch], None] = lambda round_, step, batch: None,
        rest_if_due: Callable[[], None] = lambda: None,
    ) -> None:
        """`params`: the first values, flat fp32, which are copied. `on_batch(round, step, batch)` is called before each
        step. `rest_if_due` is called after each micro-batch, and may rest. Raises ManifestError and ModelError."""
        self._config = config
        self._layout = layout
        self._device = device
        self._data = data
        self.batches = _batches_of(config, data)
        self.params = params.to(device.device, torch.float32, copy=True)
        model = self._network()
        self.params.copy_(params)  # copied again, because `examine` may have overwritten the model's values
        self._tensors = [param for _, param in model.named_parameters()]
        self._loss = TokenLoss(model, device.device, config.mask_end_token)
        self.chunked = self.recomputed = False
        self.micro_batch = config.micro_batch or config.train.batch
        """Windows that go through the model at once. Except for rounding, the gradient does not depend on it."""
        self.round = 0
        self.step_in_round = 0
        self._on_batch = on_batch
        self._rest_if_due = rest_if_due
        self._rounds = RoundClock(config.clock, config.sync_every, len(layout.fragments), growth=config.growth)
        self.lr_scale = 1.0
        self.scale = LossScale(FIRST_SCALE if device.autocast is torch.float16 else 1.0)
        self.optimizer = self._optimizer(model)

    def _network(self) -> LanguageModel:
        """Make the model with parameters that are views of `params`.

        Raises ModelError, and ManifestError when the run masks documents and the model takes no mask."""
        model = empty_model(self._config)
        bind(model, self._layout, self.params)
        model.examine()
        if self._config.mask_end_token is not None and not model.masks:
            raise ManifestError(
                f"{model.title} cannot keep documents apart: it has no attention that takes a mask and positions",
                "The operator has to set data.document_mask to false, or choose a model with attention.",
            )
        return model

    def _optimizer(self, model: LanguageModel) -> AdamW:
        """Make a fresh inner optimizer. Muon updates the decayed matrices of the blocks; AdamW updates all other
        tensors, such as embeddings."""
        views, decayed, config = [param.data for param in self._tensors], decays(model), self._config.optimizer
        if config.kind == "adamw":
            return AdamW(self.params, views, decayed, config)
        names = (name for name, _ in model.named_parameters())
        inside = [is_block_matrix(name, tuple(view.shape)) for name, view in zip(names, views, strict=True)]
        hidden = [in_block and decays_ for in_block, decays_ in zip(inside, decayed, strict=True)]
        return Muon(self.params, views, decayed, config, hidden)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step: the schedule, times warm-up of a fresh optimizer, times the operator's
        factor."""
        factor = lr_factor(self._config, self._rounds, self.round, self.step_in_round)
        return self._config.optimizer.lr * factor * self.optimizer.freshness * self.lr_scale

    def step(self) -> float | None:
        """Make one inner step on the next batch; return its mean loss in nats per token.

        None: loss or gradient were not finite, and the parameters are unchanged."""
        loss = self._backward(self._next_windows())
        grads = self._gradients()
        norm = float(torch.stack(torch._foreach_norm(grads)).norm())
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            norm /= self.scale.value
            too_long = max(1.0, (norm + 1e-6) / self._config.optimizer.clip)
            self.optimizer.step(grads, self.learning_rate, self.scale.value * too_long)
        if self._device.autocast is torch.float16:
            self.scale.update(finite)
        self.step_in_round += 1
        return loss if finite else None

    def _next_windows(self) -> Windows:
        batch = self.batches.next()
        self._on_batch(self.round, self.step_in_round, batch)
        return batch.windows

    @property
    def device(self) -> torch.device:
        return self._device.device

    def probe(self, windows: int) -> None:
        """Run one forward and backward pass over this number of windows, without a step, to measure the memory it
        takes.

        Raises torch.OutOfMemoryError on an accelerator whose memory is too small."""
        context = self._config.train.context
        tokens = np.zeros((windows, context + 1), np.uint32)
        if self._config.mask_end_token is not None:
            tokens[:, context // 2] = self._config.mask_end_token
        try:
            self._accumulate(tokens, windows * context)
        finally:
            self.forget_gradients()

    def set_micro_batch(self, windows: int) -> None:
        """Set the number of windows that go through the model at once."""
        self.micro_batch = windows

    @property
    def network(self) -> LanguageModel:
        """The model, whose tensors are views of `params`."""
        return self._loss.network

    @property
    def token_loss(self) -> TokenLoss:
        """The module that computes the model's loss."""
        return self._loss

    @property
    def chunk(self) -> int:
        """Tokens whose logits exist at once when the loss is computed in chunks."""
        return self._loss.chunk

    def save_memory(self, *, chunked: bool, recomputed: bool) -> None:
        """Trade time for memory in all later steps.

        `chunked`: compute the loss in chunks of tokens. `recomputed`: recompute the activations of the layers in the
        backward pass. The model has to support each option that is turned on. Except for rounding, gradients do not
        change."""
        assert self.network.splits or not chunked, "the logits are not the head's product"
        if recomputed != self.recomputed:
            self.network.recompute(recomputed)
        self.chunked, self.recomputed = chunked, recomputed

    def scale_learning_rate(self, scale: float) -> None:
        """Set the operator's factor on the learning rate of all later steps."""
        self.lr_scale = scale

    def halve(self) -> None:
        """Halve the micro-batch, rounded up to a power of two, and return cached memory to the accelerator."""
        assert self.micro_batch > 1, self.micro_batch
        self.micro_batch = 1 << ((self.micro_batch - 1).bit_length() - 1)  # stays or becomes a power of two
        torch.cuda.empty_cache()

    def _backward(self, windows: Windows) -> float:
        """Compute the gradients, times the loss scale; return the mean loss.

        Halves the micro-batch for good when an accelerator runs out of memory, as other programs may fill it at any
        time. Raises torch.OutOfMemoryError when a single window does not fit."""
        tokens = max(1, self._loss.counted(windows))
        while True:
            self.forget_gradients()
            try:
                parts = range(0, len(windows), self.micro_batch)
                return sum(self._part(windows[at : at + self.micro_batch], tokens) for at in parts)
            except torch.OutOfMemoryError:
                if self.micro_batch == 1:
                    raise
            self.halve()

    def _part(self, windows: Windows, tokens: int) -> float:
        loss = self._accumulate(windows, tokens)
        self._rest_if_due()
        return loss

    def _gradients(self) -> list[Tensor]:
        """Return the gradients of all tensors. A tensor that took no part in the loss gets zeros."""
        return [torch.zeros_like(param) if param.grad is None else param.grad for param in self._tensors]

    def forget_gradients(self) -> None:
        """Free the memory of the last gradients."""
        for param in self._tensors:
            param.grad = None

    def _accumulate(self, windows: Windows, tokens: int) -> float:
        """Add the gradient of these windows, divided by the batch's number of predicted `tokens`.

        Returns their part of the batch's mean loss."""
        loss: Tensor = self._loss(windows, self.scale.value / tokens, self._device.autocast, self.chunked)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.item()) / self.scale.value

    def live_weights(self) -> dict[str, Tensor]:
        """Return an empty mapping: the network's own tensors are views of `params` (see `RunNetwork`)."""
        return {}

    def evaluate(self, outer_params: Tensor, given_up: Callable[[], bool] = lambda: False) -> Evaluation:
        """Evaluate `outer_params`, flat fp32, on the hold-out in fp32. The live parameters are not changed.

        The loss is NaN when there is no hold-out, or once `given_up()` returns True."""
        train = self._config.train
        weights = weights_of(self.network, views_of(outer_params.to(self._device.device), self._layout))
        return evaluate_holdout(self._loss, self._data, train.context, train.eval_windows, weights, given_up)

    def move_to(self, round_: int, step: int) -> None:
        self.round, self.step_in_round = round_, step

    @torch.no_grad()
    def read(self, fragment: int, into: Tensor) -> None:
        """Copy a fragment's live params to `into`."""
        start, end = self._layout.fragment_span(fragment)
        into.copy_(self.params[start:end])

    @torch.no_grad()
    def merge(self, fragment: int, outer_params: Tensor, alpha: float) -> None:
        """Set a fragment's live params to `alpha * params + (1 - alpha) * outer_params`.

        The optimizer's moments do not change."""
        start, end = self._layout.fragment_span(fragment)
        merge_(self.params[start:end], outer_params, alpha)

    @torch.no_grad()
    def shift(self, fragment: int, difference: Tensor) -> None:
        """Add `difference` to a fragment's live params. The optimizer's moments do not change."""
        start, end = self._layout.fragment_span(fragment)
        self.params[start:end].add_(difference.to(self.params.device))


def lr_factor(config: TrainerConfig, rounds: RoundClock, round_: int, step: int) -> float:
    """Return the factor, from 0 to 1, on the run's peak learning rate at inner step `step` of round `round_`."""
    begun, slots = slots_before(rounds.growth, round_), slots_of(rounds.growth, round_)
    if rounds.kind == "steps":
        progress = progress_of(begun, step, rounds.steps_of(round_) / slots, config.train.total_rounds)
    else:
        progress = progress_of(begun + (slots - 1) / 2, step, None, config.train.total_rounds)
    shape = config.optimizer
    bounds = shape.warmup_fraction, shape.final_fraction
    return schedule(progress, *bounds, shape.schedule, shape.decay_fraction)


def _batches_of(config: TrainerConfig, data: TrainingData) -> BatchStream:
    train = config.train
    return BatchStream(data, seed=config.seed, peer_id=config.peer_id, context=train.context, batch=train.batch)
