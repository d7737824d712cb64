"""The outer rule `sgd`, and the preset `none`, the control: without exchanges, outer_params equal the own params."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import Method, Refusal
from peer.methods.rule import LinearTerms, OuterRule, Row
from peer.methods.topology import GROUP, SOLO
from peer.outer.arithmetic import scale_work_

if TYPE_CHECKING:
    from torch import Tensor

    from peer.outer.values import StepBlock, StepConstants

CONTROL = "none"


class Sgd(OuterRule):
    """The outer rule `sgd`: a step along the pseudo-gradient, without momentum."""

    name = "sgd"
    topologies = (GROUP, SOLO)
    equation = "outer -= outer_lr * g"

    def step(self, block: StepBlock, method: StepConstants) -> None:
        assert block.partner is None, self.name
        scale_work_(block.own, block.outer, block.share)
        sgd_(block.outer, block.own, outer_lr=method.outer_lr)

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None:
        descend_(outer, gradient, outer_lr=method.outer_lr)

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        return terms.outer - method.outer_lr * (terms.outer - terms.params), 0.0 * terms.momentum

    def keeps_momentum(self, method: StepConstants) -> bool:
        return False

    def follows(self, chosen: Method) -> dict[str, Any]:
        return {"outer_momentum": 0.0, "consensus": 0.0}

    def refusals(self, method: Method) -> Iterable[Refusal]:
        if method.outer_momentum:
            yield "outer_momentum", f"rule sgd has no momentum, so it cannot be {method.outer_momentum:g}"


def sgd_(outer: Tensor, mean_params: Tensor, *, outer_lr: float) -> None:
    """Make the step in place: outer <- outer - outer_lr * (outer - mean(params)).

    With outer_lr = 1 the result is exactly the mean. `mean_params` is overwritten."""
    if outer_lr == 1.0:
        outer.copy_(mean_params)
        return
    mean_params.sub_(outer).mul_(outer_lr)
    outer.add_(mean_params)


def descend_(outer: Tensor, gradient: Tensor, *, outer_lr: float) -> None:
    """Make the step in place: outer <- outer - outer_lr * g.

    `gradient` is the group's mean pseudo-gradient and is overwritten."""
    outer.sub_(gradient.mul_(outer_lr))


def control_refusals(given: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield a refusal for each choice that would change the preset `none`.

    A codec is permitted: nothing crosses the wire, so it has no effect. `given`: the choices of the manifest."""
    for name, value in given.items():
        fixed = getattr(NONE, name)
        if name != "codec" and value != fixed:
            yield name, f"preset none is the control and takes no {name} ({value}) but its own ({fixed or 'none'})"


NONE = Method(topology=SOLO.name, rule=Sgd.name, outer_lr=1.0, outer_momentum=0.0, consensus=0.0, codec="fp32")

ENTRY = MethodEntry(rule=Sgd(), presets=(Preset(name=CONTROL, method=NONE, purpose="the control: nobody exchanges"),))
