"""Eager updates (arXiv 2502.12996): a member of a group steps at once with its own new contribution, and later with the
contributions of the others, when their exchange has ended.

In the paper, member i feeds its outer optimizer with the group's mean of one period ago, in which its own old
contribution is replaced by the new one:

    x_t = G_{t-1} + (g_{i,t} - g_{i,t-1}) / M,   in the first step g_{i,0} / M

Each member then has outer_params of its own. Because the rules of groups are linear, these equal the sum of a state
that took G_0 … G_{t-1}, which all members share bit for bit, and of the member's own part:

    speed_t = outer_momentum * speed_{t-1} + g_{i,t} / M
    ahead_t = outer_params - outer_lr * (g_{i,t} / M + outer_momentum * speed_t)

The trainer continues from `ahead`, and its next work is counted from there. The shared state and the exchange are the
same as without eager updates, so joins, catch-up and quorums need no special case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.outer.arithmetic import blocks


@dataclass(slots=True)
class LookAhead:
    """A member's own part of one fragment, flat fp32. At the start, and for a joiner, it equals the shared state."""

    base: Tensor
    """Params from which the trainer's work is counted. During an exchange, `base - ahead` is the work that is
    exchanged."""
    ahead: Tensor
    """outer_params plus the own part: what the trainer continues from."""
    speed: Tensor
    """Own part of the momentum, without the work that is being exchanged."""
    weight: float = 0.0
    """Factor of the work that is being exchanged: its share, divided by the number of members."""

    @classmethod
    def at(cls, outer: Tensor) -> LookAhead:
        """Return the own part for a member that starts from this shared state."""
        return cls(outer.clone(), outer.clone(), torch.zeros_like(outer))

    def advance(self, params: Tensor, outer: Tensor, weight: float, outer_lr: float, outer_momentum: float) -> Tensor:
        """Take the own step with the trainer's `params`. Return the difference that the trainer has to add to them.

        weight: the share of the work that counts, divided by the number of members."""
        self.weight, shift = weight, torch.empty_like(outer)
        for part in blocks(outer.numel()):
            fresh = torch.sub(self.base[part], params[part]).mul_(weight)
            speed = self.speed[part].mul(outer_momentum).add_(fresh)
            torch.sub(outer[part], fresh.add_(speed.mul_(outer_momentum)).mul_(outer_lr), out=self.ahead[part])
            torch.sub(self.ahead[part], params[part], out=shift[part])
            self.base[part].add_(shift[part])
        return shift

    def settle(self, spans: Sequence[tuple[int, int]], outer_momentum: float) -> None:
        """Add the exchanged work to the own momentum, once the group's result was applied or dropped. spans: element
        ranges for which the group has a mean."""
        for start, end in spans:
            for part in blocks(end - start):
                span = slice(start + part.start, min(start + part.stop, end))
                fresh = torch.sub(self.base[span], self.ahead[span]).mul_(self.weight)
                self.speed[span].mul_(outer_momentum).add_(fresh)
        self.base.copy_(self.ahead)

    def shift(self, difference: Tensor) -> None:
        """Add a change of the shared state, which the trainer's params received too."""
        self.base.add_(difference)
        self.ahead.add_(difference)
