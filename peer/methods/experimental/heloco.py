"""HeLoCo (arXiv 2606.00271): before it sends its pseudo-gradient, each member of a group corrects every tensor of it
with the outer momentum.

With c the cosine of the angle between a tensor's pseudo-gradient g and its momentum m, |.| the Euclidean norm, and
s = |g| / (|g| + CONFIDENCE |m|), the member sends:

    c >= KEEP       g
    c < 0           g - b c |g| m/|m|,  b = min(SHRINK * -c * s, MOST_SHRUNK)
    else            |g| u/|u|,  u = (1 - t) g/|g| + t m/|m|,  t = min(TURN * (1 - c) * s, 1)

The step with the mean G of the corrected pseudo-gradients is:

    m <- outer_momentum * m + (1 - outer_momentum) * G;   outer <- outer - outer_lr * (G + outer_momentum * m)

Only the abstract and the first pages of the paper were available. The equations are from secondary sources: a
catalogue's entry and two public implementations. They agree with each other, number the equations as the paper's 7 to
15, 18 and 19, and give the constants as those of its table 3. In the paper, workers send one after the other and begin
ahead of the outer params by outer_lr * outer_momentum * m (its equation 5). Here the members send at the same time and
begin at the outer params. The implementations have an outer_momentum of 0.9. In the setting of `peer.methods.cautions`
that gained 8 to 9 %, and 0.5 gained 12 %."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import GROUPED, Method, Refusal
from peer.methods.rule import LinearTerms, OuterRule, Row
from peer.methods.topology import GROUP
from peer.outer.arithmetic import blocks

if TYPE_CHECKING:
    from torch import Tensor

    from peer.outer.values import StepConstants

KEEP, SHRINK, MOST_SHRUNK, TURN, CONFIDENCE = 0.2, 0.5, 0.5, 1.0, 3.0
SHORTEST = 1e-8
"""Least norm of a pseudo-gradient and of a momentum; below it, nothing is corrected."""


class Heloco(OuterRule):
    """The outer rule `heloco`: a damped Nesterov step along pseudo-gradients that were turned towards the momentum."""

    name = "heloco"
    topologies = (GROUP,)
    equation = (
        "m = outer_momentum * m + (1 - outer_momentum) * g; outer -= outer_lr * (g + outer_momentum * m), "
        "where each member has turned its g towards m"
    )
    since = 8
    corrects = True

    def correct(self, gradient: Tensor, momentum: Tensor) -> None:
        correct_(gradient, momentum)

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None:
        heloco_(outer, momentum, gradient, outer_lr=method.outer_lr, outer_momentum=method.outer_momentum)

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        """See `OuterRule`. Leaves out the correction, which never makes a pseudo-gradient longer."""
        decay, work = method.outer_momentum, terms.outer - terms.params
        momentum = decay * terms.momentum + (1 - decay) * work
        return terms.outer - method.outer_lr * (work + decay * momentum), momentum

    def fresh_gain(self, method: Method) -> tuple[str, float]:
        """See `OuterRule`. Only a part of a new pseudo-gradient enters the momentum.

        The bounds in `peer.methods.cautions` were measured for this rule, too."""
        decay = method.outer_momentum
        return "outer_lr * (1 + outer_momentum - outer_momentum^2)", method.outer_lr * (1 + decay - decay**2)

    def lasting_gain(self, method: Method) -> tuple[str, float]:
        return "outer_lr * (1 + outer_momentum)", method.outer_lr * (1 + method.outer_momentum)

    def refusals(self, method: Method) -> Iterable[Refusal]:
        if method.eager:
            yield "eager", "an eager member takes its own part of a sum at once, and heloco corrects each part"


def correct_(gradient: Tensor, momentum: Tensor) -> None:
    """Correct the pseudo-gradient of one tensor in place. Norms and the scalar product are computed in fp64."""
    length, speed, product = _lengths(gradient, momentum)
    if length < SHORTEST or speed < SHORTEST:
        return
    cosine, confidence = product / (length * speed), length / (length + CONFIDENCE * speed)
    if cosine >= KEEP:
        return
    kept, taken = 1.0, 0.0
    if cosine < 0:
        taken = min(SHRINK * -cosine * confidence, MOST_SHRUNK) * -cosine * length / speed
    else:
        turned = min(TURN * (1 - cosine) * confidence, 1.0)
        mixed = math.sqrt((1 - turned) ** 2 + turned**2 + 2 * (1 - turned) * turned * cosine)
        kept, taken = (1 - turned) / mixed, turned * length / (speed * mixed)
    for part in blocks(gradient.numel()):
        gradient[part].mul_(kept).add_(momentum[part].mul(taken))


def _lengths(gradient: Tensor, momentum: Tensor) -> tuple[float, float, float]:
    """Return (norm of the pseudo-gradient, norm of the momentum, scalar product)."""
    length = speed = product = 0.0
    for part in blocks(gradient.numel()):
        g, m = gradient[part].double(), momentum[part].double()
        length, speed, product = length + float(g.dot(g)), speed + float(m.dot(m)), product + float(g.dot(m))
    return math.sqrt(length), math.sqrt(speed), product


def heloco_(outer: Tensor, momentum: Tensor, gradient: Tensor, *, outer_lr: float, outer_momentum: float) -> None:
    """Make the step in place. `gradient`: the group's mean of corrected pseudo-gradients, which is overwritten."""
    for part in blocks(outer.numel()):
        mean, speed = gradient[part], momentum[part]
        speed.mul_(outer_momentum).add_(mean.mul(1.0 - outer_momentum))
        mean.add_(speed.mul(outer_momentum)).mul_(outer_lr)
        outer[part].sub_(mean)


ENTRY = MethodEntry(
    rule=Heloco(),
    presets=(
        Preset(
            name="heloco",
            method=Method(
                rule=Heloco.name,
                outer_lr=0.7,
                outer_momentum=0.5,
                consensus=0.0,
                codec="fp32",
                result_codec="fp32",
                **GROUPED,
            ),
            purpose="a group whose members train on unlike texts, as its paper has it (arXiv 2606.00271)",
            since=8,
        ),
    ),
)
