"""NoLoCo (arXiv 2506.10911) and gossip: two partners make a step towards the mean of their params."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import PAIRED, STREAMED, Method
from peer.methods.rule import LinearTerms, OuterRule, Row
from peer.methods.sgd import sgd_
from peer.methods.topology import PAIR, SOLO
from peer.outer.arithmetic import pair_mean_, scale_work_

if TYPE_CHECKING:
    from torch import Tensor

    from peer.outer.values import StepBlock, StepConstants


class NoLoCo(OuterRule):
    """The outer rule `noloco`: a heavy-ball step along the mean pseudo-gradient, and a pull towards the mean of the
    partners' outer_params."""

    name = "noloco"
    topologies = (PAIR, SOLO)
    equation = "m = outer_momentum * m - outer_lr * mean(g) - consensus * (outer - mean(outer)); outer += m"
    consensus = True
    lattice = True

    def step(self, block: StepBlock, method: StepConstants) -> None:
        outer, momentum, own, partner = block.outer, block.momentum, block.own, block.partner
        scale_work_(own, outer, block.share)
        if partner is not None:
            pair_mean_(partner, own)
        if partner is not None and self.sends_outer(method):
            theirs = block.partner_outer
            assert theirs is not None, "with a consensus of its own the partner's outer_params are needed too"
            noloco_apart_(
                outer,
                momentum,
                own,
                pair_mean_(outer, block.spare.copy_(theirs)),
                outer_lr=method.outer_lr,
                outer_momentum=method.outer_momentum,
                consensus=method.consensus,
            )
        elif method.outer_momentum == 0.0:
            # does not write outer_momentum, so that its untouched zeros take no memory
            sgd_(outer, own, outer_lr=method.outer_lr)
        else:
            noloco_(outer, momentum, own, outer_lr=method.outer_lr, outer_momentum=method.outer_momentum)

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        work = 0.5 * (terms.params - terms.outer + terms.their_params - terms.their_outer)
        pull = 0.5 * method.consensus * (terms.outer - terms.their_outer)
        momentum = method.outer_momentum * terms.momentum + method.outer_lr * work - pull
        return terms.outer + momentum, momentum

    def sends_outer(self, method: StepConstants) -> bool:
        """Return whether consensus differs from outer_lr.

        If they are equal, the means of pseudo-gradients and of outer_params combine into the mean of the params, so
        that only those have to be sent."""
        return method.consensus != method.outer_lr

    def keeps_momentum(self, method: StepConstants) -> bool:
        """Return False if outer_momentum is 0 and only params are sent: the step is then that of `sgd_`."""
        return bool(method.outer_momentum) or self.sends_outer(method)

    def follows(self, chosen: Method) -> dict[str, Any]:
        """Return a consensus equal to outer_lr, so that only params have to be sent."""
        return {"consensus": chosen.outer_lr}


def noloco_(outer: Tensor, momentum: Tensor, mean_params: Tensor, *, outer_lr: float, outer_momentum: float) -> None:
    """Make NoLoCo's step in place for consensus = outer_lr.

    mean(pseudo-gradient) and mean(outer_params) then combine into the mean of the fast parameters (arXiv 2506.10911,
    Eq. 1-3 with the sign of its proof, Eq. 32):

        m <- outer_momentum * m + outer_lr * (mean(params) - outer);   outer <- outer + m

    `mean_params` is the mean over the pair (the own parameters in a solo step) and is overwritten."""
    mean_params.sub_(outer).mul_(outer_lr)
    momentum.mul_(outer_momentum).add_(mean_params)
    outer.add_(momentum)


def noloco_apart_(
    outer: Tensor,
    momentum: Tensor,
    mean_params: Tensor,
    mean_outer: Tensor,
    *,
    outer_lr: float,
    outer_momentum: float,
    consensus: float,
) -> None:
    """Make NoLoCo's step in place for a consensus that differs from outer_lr. With mean(g) = mean(outer) -
    mean(params):

        m <- outer_momentum * m - outer_lr * mean(g) - consensus * (outer - mean(outer));   outer <- outer + m

    `mean_params` and `mean_outer` are means over the pair and are overwritten."""
    mean_params.sub_(mean_outer).mul_(outer_lr)
    mean_outer.sub_(outer).mul_(consensus)
    momentum.mul_(outer_momentum).add_(mean_params).add_(mean_outer)
    outer.add_(momentum)


_NOLOCO: dict[str, Any] = PAIRED | {"rule": NoLoCo.name, "outer_lr": 0.7, "outer_momentum": 0.5, "consensus": 0.7}
_GOSSIP: dict[str, Any] = _NOLOCO | {"outer_lr": 1.0, "outer_momentum": 0.0, "consensus": 1.0}

ENTRY = MethodEntry(
    rule=NoLoCo(),
    presets=(
        Preset(
            name="gossip",
            method=Method(codec="modulo7", **_GOSSIP),
            purpose="many, unequal or unreliable machines: partners take their mean. The default",
            since=3,
        ),
        Preset(
            name="noloco",
            method=Method(codec="modulo7", **_NOLOCO),
            purpose="the same with the paper's outer momentum (arXiv 2506.10911)",
        ),
        Preset(
            name="streaming-noloco",
            method=Method(schedule="streaming", codec="bf16", **_NOLOCO, **STREAMED),
            purpose="the same, where the link would hold up the trainer: the peak rate is that of one fragment",
        ),
    ),
)
