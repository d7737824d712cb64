"""A trainer in virtual time without a model, for simulations that measure rounds and traffic, not the loss."""

from __future__ import annotations

import math

import torch

from peer.lab.sim.trainer import VirtualTrainer
from peer.ports.clock import Clock
from peer.ports.trainer import Evaluation
from peer.protocol.model.layout import Layout


def first_params(seed: int, layout: Layout) -> torch.Tensor:
    """Return the first outer_params of a run: seeded noise of deviation 1, flat fp32. As in a real model, and unlike
    from zeros, a round changes the params by a small part of their size, so that the lattice codec decodes almost every
    block without a request."""
    return torch.randn(layout.elements, generator=torch.Generator().manual_seed(seed))


class FakeTrainer(VirtualTrainer):
    """A trainer whose steps add seeded noise to the parameters. Cheap enough to simulate large swarms for days.

    step_seconds: duration of an inner step. tokens_per_step: tokens counted for each step. seed: of the noise."""

    kind = "fake"

    def __init__(
        self, layout: Layout, clock: Clock, *, step_seconds: float, tokens_per_step: int = 64, seed: int = 0
    ) -> None:
        super().__init__(layout, clock, step_seconds=step_seconds, tokens_per_step=tokens_per_step)
        self._noise = torch.Generator().manual_seed(seed)
        self._values = torch.empty(0)

    def _reset(self, params: torch.Tensor) -> None:
        self._values = params.clone()

    def _params(self) -> torch.Tensor:
        return self._values

    def _train(self, steps: int) -> float:
        """Add the noise of `steps` steps at once. Return the sum of made-up losses that fall with the number of
        steps."""
        self._values += 0.01 * steps**0.5 * torch.randn(self._values.shape, generator=self._noise)
        return steps * math.exp(-(self._steps + steps) / 1000)

    def _measure(self, params: torch.Tensor) -> Evaluation:
        loss = float(params.square().mean())
        return Evaluation(loss, loss / math.log(2), 1)
