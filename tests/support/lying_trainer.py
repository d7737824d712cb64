"""A trainer whose daemon sends something else than what was trained: what the others make of it is to be seen. Mixed
into a trainer of virtual time, for layouts of one fragment that is merged at once and whole:

    class Liar(Lying, TinyTrainer): ..."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from peer.lab.sim.trainer import VirtualTrainer
from peer.ports.trainer import TrainerInfo

NOISE = 10.0
"""So many times as long as the work."""


class Lying(VirtualTrainer):
    """`attack`: what the work is multiplied with, or None for noise `NOISE` times as long. The trainer itself goes on
    from what it did."""

    attack: float | None = 1.0

    async def start(self, outer_params: Tensor, round_: int, resume: Path | None) -> TrainerInfo:
        info = await super().start(outer_params, round_, resume)
        assert len(self._base) == 1, "one fragment"
        self._anchor = outer_params.clone()
        self._noise = torch.Generator().manual_seed(1)
        return info

    def _merge(self, arrival: object) -> None:
        super()._merge(arrival)  # type: ignore[arg-type]
        self._anchor.copy_(self._params())

    def _snapshot(self, goal: object) -> None:
        super()._snapshot(goal)  # type: ignore[arg-type]
        work = self._slots - self._anchor
        if self.attack is None:
            noise = torch.randn(work.shape, generator=self._noise)
            work = noise * (NOISE * work.norm() / noise.norm())
        else:
            work = work * self.attack
        self._slots.copy_(self._anchor + work)
