"""A peer's outer state: what is evaluated, archived, donated, and moved by the outer rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.outer.rules import noloco_, pair_mean_, scale_work_, sgd_
from peer.protocol.layout import Layout


@dataclass(slots=True)
class OuterState:
    """`outer_params` and `outer_momentum` of the whole model, flat fp32 in layout order. Moved only by `step`."""

    layout: Layout
    params: Tensor
    momentum: Tensor
    busy: bool = field(default=False)
    """A step is under way in a thread: nobody may copy the params now."""

    @classmethod
    def fresh(cls, layout: Layout, params: Tensor) -> OuterState:
        """Momentum zero: pair topology, first start and joiners alike."""
        assert params.shape == (layout.elements,), (params.shape, layout.elements)
        return cls(layout, params.to(torch.float32), torch.zeros(layout.elements))

    def fragment(self, fragment: int) -> Tensor:
        """A view of one fragment of `params`."""
        start, end = self.layout.fragment_span(fragment)
        return self.params[start:end]

    def step(
        self,
        fragment: int,
        own: Tensor,
        partner: Tensor | None,
        *,
        rule: str,
        outer_lr: float,
        outer_momentum: float,
        share: float = 1.0,
    ) -> None:
        """One outer step of a fragment with the partner's decoded params, or solo (`partner` None). `own` and `partner`
        are overwritten. Runs in a worker thread; the caller sets `busy` around it."""
        start, end = self.layout.fragment_span(fragment)
        outer, momentum = self.params[start:end], self.momentum[start:end]
        scale_work_(own, outer, share)
        mean = own if partner is None else pair_mean_(own, partner)
        if rule == "noloco":
            noloco_(outer, momentum, mean, outer_lr=outer_lr, outer_momentum=outer_momentum)
        else:
            assert rule == "sgd", rule
            sgd_(outer, mean, outer_lr=outer_lr)
