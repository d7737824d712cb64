"""A trainer in virtual time that really learns: simulations with it show what a method is worth, not only that it runs.

layout = peer.protocol.model.fragments.cut(TENSORS, fragments=2, pattern="strided")
trainer = TinyTrainer(layout, clock, step_seconds=0.1, seed=7, data="peer 3")
await trainer.start(first_params(7, layout), 0, None)"""

from __future__ import annotations

import math

import torch

from peer.lab.sim.tiny_model import BATCH, SYMBOLS, TENSORS, TinyLoop, first_params, least_loss, loss_of
from peer.lab.sim.trainer import VirtualTrainer
from peer.ports.clock import Clock
from peer.ports.trainer import Evaluation
from peer.protocol.model.layout import Layout

__all__ = ["TENSORS", "TinyTrainer", "first_params", "least_loss"]


class TinyTrainer(VirtualTrainer):
    """The `Trainer` interface around `peer.lab.sim.tiny_model`. What it learns is a function of the arguments and of
    what was applied: peers of one run have one `seed` (the teacher's), and each its own `data`.

    layout: of `TENSORS`, in any order and cut. step_seconds: time of an inner step; it costs about 0.1 ms of CPU."""

    kind = "tiny"

    def __init__(self, layout: Layout, clock: Clock, *, step_seconds: float, seed: int = 0, data: str = "") -> None:
        super().__init__(layout, clock, step_seconds=step_seconds, tokens_per_step=BATCH)
        self._seed, self._data = seed, data
        self._loop: TinyLoop

    def _reset(self, params: torch.Tensor) -> None:
        self._loop = TinyLoop(self._layout, params, seed=self._seed, data=self._data)

    def _params(self) -> torch.Tensor:
        return self._loop.params

    def _train(self, steps: int) -> float:
        self._loop.move_to(self.round, self.step_in_round)
        return sum(self._loop.step() for _ in range(steps))

    def _measure(self, params: torch.Tensor) -> Evaluation:
        """Exact: over everything that the teacher can say."""
        loss = loss_of(params, self._layout, self._seed)
        return Evaluation(loss, loss / math.log(2), SYMBOLS**2)

    def _moments(self) -> dict[str, torch.Tensor]:
        loop = self._loop
        moments = {"mean": loop.mean, "square": loop.square, "age": loop.age}
        return {name: torch.from_numpy(moment) for name, moment in moments.items()}

    def _scale_lr(self, scale: float) -> None:
        super()._scale_lr(scale)
        self._loop.lr_scale = scale
