"""The real model and inner optimizer in virtual time: with a given duration of a step, a simulated swarm computes the
same steps as a real one. Steps take real processor time, so use it for small models and short runs only.

trainer = ModelTrainer(config_of(manifest, "peer 3"), layout, clock, step_seconds=0.1)
await trainer.start(peer.trainer.models.llama.first_params(manifest.model, manifest.seed, layout), 0, None)"""

from __future__ import annotations

import torch

from peer.lab.sim.trainer import VirtualTrainer
from peer.ports.clock import Clock
from peer.ports.trainer import Evaluation
from peer.protocol.model.layout import Layout
from peer.protocol.sampling import START
from peer.run.manifest import Manifest
from peer.trainer.config import TrainerConfig
from peer.trainer.data import load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop


def config_of(manifest: Manifest, peer_id: str) -> TrainerConfig:
    """Return the config of a peer with default options, on the CPU. Its windows are drawn from `peer_id`."""
    return TrainerConfig.of(manifest, peer_id, device="cpu")


class ModelTrainer(VirtualTrainer):
    """The `Trainer` port around `peer.trainer.inner_loop.InnerLoop`.

    step_seconds: simulated duration of an inner step. Raises DataError if there is no data."""

    kind = "model"

    def __init__(self, config: TrainerConfig, layout: Layout, clock: Clock, *, step_seconds: float) -> None:
        super().__init__(layout, clock, step_seconds=step_seconds, tokens_per_step=config.tokens_per_step)
        self._config = config
        self._device = choose_device(config.device)
        self._corpus = load_corpus(config.data, None, config.train.context)
        self._loop: InnerLoop
        self._cursor = START

    def _reset(self, params: torch.Tensor) -> None:
        self._loop = InnerLoop(self._config, self._layout, self._device, self._corpus, params)
        self._loop.batches.move_to(self._cursor)

    def _params(self) -> torch.Tensor:
        return self._loop.params

    def _train(self, steps: int) -> float:
        self._loop.move_to(self.round, self.step_in_round)
        losses = sum(self._loop.step() or 0.0 for _ in range(steps))
        self._cursor = self._loop.batches.cursor
        return losses

    def _measure(self, params: torch.Tensor) -> Evaluation:
        result = self._loop.evaluate(params)
        return Evaluation(result.loss, result.bits_per_byte, result.tokens)

    def _moments(self) -> dict[str, torch.Tensor]:
        optimizer = self._loop.optimizer
        return {"exp_avg": optimizer.exp_avg, "exp_avg_sq": optimizer.exp_avg_sq}

    def _scale_lr(self, scale: float) -> None:
        super()._scale_lr(scale)
        self._loop.lr_scale = scale
