"""The inner loop: one model, its optimizer and its place in the run, without processes, foreign files or clocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor
from torch.func import functional_call

from peer.outer.rules import merge_
from peer.ports.trainer import Evaluation
from peer.protocol.model.layout import Layout
from peer.trainer.batches import Windows, draw, holdout_windows
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import Device
from peer.trainer.models.factory import bind, decayed, empty_model, prefix_of
from peer.trainer.models.flat import views_of
from peer.trainer.optimizer import AdamW, progress_of, schedule

EVAL_TOKENS = 8192
"""Tokens that go through the model at once in an evaluation, about."""
FIRST_SCALE = 2.0**16
GROW_AFTER = 2000


@dataclass(slots=True)
class LossScale:
    """Dynamic loss scaling for fp16 (arXiv 1710.03740): halved by an overflow, doubled after `GROW_AFTER` steps
    without."""

    value: float
    good_steps: int = 0

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
    """Live parameters as one flat fp32 vector, of which the model's tensors are views. The gradients are laid out
    alike."""

    def __init__(
        self,
        config: TrainerConfig,
        layout: Layout,
        device: Device,
        corpus: Corpus,
        params: Tensor,
        on_batch: Callable[[int, int, Windows], None] = lambda round_, step, windows: None,
    ) -> None:
        """`params`: flat fp32, copied. `on_batch` is called with each batch before its step: round, step, windows."""
        self._config = config
        self._layout = layout
        self._device = device
        self._corpus = corpus
        self.params = params.to(device.device, torch.float32, copy=True)
        self._grad = torch.zeros_like(self.params)
        self._model = empty_model(config)
        bind(self._model, layout, self.params, self._grad)
        self.micro_batch = config.micro_batch or config.train.batch
        """Windows that go through the model at once. The gradient of a step does not depend on it, up to rounding."""
        self.round = 0
        self.step_in_round = 0
        self._on_batch = on_batch
        steps_per_round = config.sync_every / len(layout.fragments)
        self._steps_per_round = steps_per_round if config.clock == "steps" else None
        self.lr_scale = 1.0
        self.scale = LossScale(FIRST_SCALE if device.autocast is torch.float16 else 1.0)
        self.optimizer = AdamW(self.params, decayed(self._model), config.optimizer)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        config = self._config.optimizer
        total = self._config.train.total_rounds
        progress = progress_of(self.round, self.step_in_round, self._steps_per_round, total)
        factor = schedule(progress, config.warmup_fraction, config.final_fraction)
        return config.lr * factor * self.optimizer.freshness * self.lr_scale

    def step(self) -> float | None:
        """Make one inner step on the next windows; return the mean loss in nats per token.

        None means that loss or gradient were not finite, and that the parameters are unchanged."""
        loss = self._backward(self._next_windows())
        norm = float(self._grad.norm())
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            norm /= self.scale.value
            shrink = min(1.0, self._config.optimizer.clip / (norm + 1e-6)) / self.scale.value
            if shrink != 1.0:
                self._grad.mul_(shrink)
            self.optimizer.step(self._grad, self.learning_rate)
        if self._device.autocast is torch.float16:
            self.scale.update(finite)
        self.step_in_round += 1
        return loss if finite else None

    def _next_windows(self) -> Windows:
        config = self._config
        windows = draw(
            self._corpus.train,
            context=config.train.context,
            batch=config.train.batch,
            seed=config.seed,
            peer_id=config.peer_id,
            round_=self.round,
            step=self.step_in_round,
        )
        self._on_batch(self.round, self.step_in_round, windows)
        return windows

    @property
    def device(self) -> torch.device:
        return self._device.device

    def probe(self, windows: int) -> None:
        """Run one forward and backward pass over so many windows, and zero the gradient.

        Raises torch.OutOfMemoryError on an accelerator whose memory is too small."""
        try:
            self._accumulate(np.zeros((windows, self._config.train.context + 1), np.uint8), windows)
        finally:
            self._grad.zero_()

    def set_micro_batch(self, windows: int) -> None:
        """Put so many windows through the model at once from here on."""
        self.micro_batch = windows

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the learning rate of all later steps with `scale`."""
        self.lr_scale = scale

    def halve(self) -> None:
        """Put half as many windows through the model at once from here on."""
        assert self.micro_batch > 1, self.micro_batch
        self.micro_batch = 1 << ((self.micro_batch - 1).bit_length() - 1)  # stays or becomes a power of two
        torch.cuda.empty_cache()

    def _backward(self, windows: Windows) -> float:
        """Fill the gradient (times the loss scale); return the loss.

        When others fill up the accelerator meanwhile, it gets fewer windows at once. Raises torch.OutOfMemoryError when
        one window is too much."""
        while True:
            self._grad.zero_()
            try:
                parts = range(0, len(windows), self.micro_batch)
                return sum(self._accumulate(windows[at : at + self.micro_batch], len(windows)) for at in parts)
            except torch.OutOfMemoryError:
                if self.micro_batch == 1:
                    raise
            self.halve()

    def _accumulate(self, windows: Windows, batch: int) -> float:
        """Add the gradient of these windows, as a share of a batch of `batch` windows; return their share of the
        loss."""
        inputs, targets = self._tokens(windows)
        device = self._device
        with torch.autocast(device.device.type, device.autocast, enabled=device.autocast is not None):
            logits = self._model(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()) * (len(windows) / batch)
        (loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        return float(loss.item())

    def _tokens(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), each [windows, context] int64 on the device."""
        tokens = torch.from_numpy(windows.astype(np.int64)).to(self._device.device)
        return tokens[:, :-1], tokens[:, 1:]

    @torch.inference_mode()
    def evaluate(self, outer_params: Tensor) -> Evaluation:
        """Evaluate these flat fp32 parameters in fp32 on the hold-out. The live parameters stay as they are."""
        train = self._config.train
        windows = holdout_windows(self._corpus.holdout, context=train.context, count=train.eval_windows)
        views, prefix = views_of(outer_params.to(self._device.device), self._layout), prefix_of(self._model)
        weights = {prefix + name: view for name, view in views}
        together = max(1, EVAL_TOKENS // train.context)
        total = 0.0
        for at in range(0, len(windows), together):
            inputs, targets = self._tokens(windows[at : at + together])
            logits = functional_call(self._model, weights, (inputs,))
            total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
        tokens = train.eval_windows * train.context
        loss = total / tokens
        return Evaluation(loss, loss / math.log(2), tokens)

    def move_to(self, round_: int, step: int) -> None:
        self.round, self.step_in_round = round_, step

    @torch.no_grad()
    def merge(self, fragment: int, outer_params: Tensor, alpha: float) -> None:
        """Set a fragment's live params to `alpha * params + (1 - alpha) * outer_params`. The optimizer's moments
        stay."""
        start, end = self._layout.fragment_span(fragment)
        merge_(self.params[start:end], outer_params, alpha)

    @torch.no_grad()
    def shift(self, fragment: int, difference: Tensor) -> None:
        """Add `difference` to a fragment's live params. The optimizer's moments stay."""
        start, end = self._layout.fragment_span(fragment)
        self.params[start:end].add_(difference.to(self.params.device))
