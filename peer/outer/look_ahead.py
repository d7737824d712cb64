"""Eager updates (arXiv 2502.12996): a member of a group steps at once with its own fresh part, and later with the
others', when their exchange is over.

The paper's member i feeds its outer optimizer with the mean of a period ago, its own part exchanged for the fresh one:

    x_t = G_{t-1} + (g_{i,t} - g_{i,t-1}) / M,   in the first step g_{i,0} / M

So each member has outer_params of its own. The rules of groups are linear. So the same params are the sum of a state
that took G_0 … G_{t-1}, which all members share bit for bit, and of the own part:

    speed_t = outer_momentum * speed_{t-1} + g_{i,t} / M
    ahead_t = outer_params - outer_lr * (g_{i,t} / M + outer_momentum * speed_t)

`ahead` is what the trainer goes on with, and what its next work counts against. Shared state and exchange stay as they
are without eager updates: joiners, catching up and quorums know nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.outer.arithmetic import blocks


@dataclass(slots=True)
class LookAhead:
    """One fragment's own part, flat fp32. It begins as the shared state, with a joiner as at the start of a run."""

    base: Tensor
    """The params that the trainer's work is counted from. The work on its way is `base - ahead`."""
    ahead: Tensor
    speed: Tensor
    """The own part of the momentum, without the work on its way."""
    weight: float = 0.0
    """Factor of the work on its way in the own part."""

    @classmethod
    def at(cls, outer: Tensor) -> LookAhead:
        return cls(outer.clone(), outer.clone(), torch.zeros_like(outer))

    def advance(self, params: Tensor, outer: Tensor, weight: float, outer_lr: float, outer_momentum: float) -> Tensor:
        """Take the own step with the trainer's `params`. Return what the trainer has to add to them.

        weight: share of the work that counts, over the number of members."""
        self.weight, shift = weight, torch.empty_like(outer)
        for part in blocks(outer.numel()):
            fresh = torch.sub(self.base[part], params[part]).mul_(weight)
            speed = self.speed[part].mul(outer_momentum).add_(fresh)
            torch.sub(outer[part], fresh.add_(speed.mul_(outer_momentum)).mul_(outer_lr), out=self.ahead[part])
            torch.sub(self.ahead[part], params[part], out=shift[part])
            self.base[part].add_(shift[part])
        return shift

    def settle(self, spans: Sequence[tuple[int, int]], outer_momentum: float) -> None:
        """The work on its way was applied or dropped. spans: elements in which the group has a mean."""
        for start, end in spans:
            for part in blocks(end - start):
                span = slice(start + part.start, min(start + part.stop, end))
                fresh = torch.sub(self.base[span], self.ahead[span]).mul_(self.weight)
                self.speed[span].mul_(outer_momentum).add_(fresh)
        self.base.copy_(self.ahead)

    def shift(self, difference: Tensor) -> None:
        """The shared state has changed by this, and the trainer's params too."""
        self.base.add_(difference)
        self.ahead.add_(difference)
