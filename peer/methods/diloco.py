"""DiLoCo (arXiv 2311.08105) and streaming DiLoCo (arXiv 2501.18512).

A group makes a step with Nesterov momentum along the mean pseudo-gradient of its members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import GROUPED, STREAMED, Method
from peer.methods.rule import LinearTerms, OuterRule, Row
from peer.methods.topology import GROUP, SOLO
from peer.outer.arithmetic import blocks, pseudo_gradient_

if TYPE_CHECKING:
    from torch import Tensor

    from peer.outer.values import StepBlock, StepConstants


class Nesterov(OuterRule):
    """The outer rule `nesterov`: a step with Nesterov momentum along the pseudo-gradient."""

    name = "nesterov"
    topologies = (GROUP, SOLO)
    equation = "m = outer_momentum * m + g; outer -= outer_lr * (g + outer_momentum * m)"

    def step(self, block: StepBlock, method: StepConstants) -> None:
        assert block.partner is None, self.name
        gradient = pseudo_gradient_(block.own, block.outer, block.share)
        self.descend(block.outer, block.momentum, gradient, method)

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None:
        nesterov_(outer, momentum, gradient, outer_lr=method.outer_lr, outer_momentum=method.outer_momentum)

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        decay = method.outer_momentum
        momentum = decay * terms.momentum + terms.outer - terms.params
        return terms.outer - method.outer_lr * (terms.outer - terms.params + decay * momentum), momentum


def nesterov_(outer: Tensor, momentum: Tensor, gradient: Tensor, *, outer_lr: float, outer_momentum: float) -> None:
    """Make a Nesterov step in place, as `torch.optim.SGD(nesterov=True)` defines it, without fused operations:

        m <- outer_momentum * m + g;   outer <- outer - outer_lr * (g + outer_momentum * m)

    `gradient` is the group's mean pseudo-gradient and is overwritten."""
    for part in blocks(outer.numel()):
        mean, speed = gradient[part], momentum[part]
        speed.mul_(outer_momentum).add_(mean)
        mean.add_(speed.mul(outer_momentum)).mul_(outer_lr)
        outer[part].sub_(mean)


NESTEROV = Nesterov()
CONSTANTS: dict[str, Any] = {"rule": NESTEROV.name, "outer_lr": 0.7, "outer_momentum": 0.5, "consensus": 0.0}
DILOCO: dict[str, Any] = GROUPED | CONSTANTS

ENTRY = MethodEntry(
    rule=NESTEROV,
    presets=(
        Preset(
            name="diloco",
            method=Method(codec="fp32", result_codec="fp32", **DILOCO),
            purpose="a few machines of like speed with good links",
        ),
        Preset(
            name="streaming-diloco",
            method=Method(schedule="streaming", codec="int4", result_codec="int8", **DILOCO, **STREAMED),
            purpose="a group on narrow links: 4 bits an element up, 8 back (arXiv 2501.18512)",
        ),
    ),
)
