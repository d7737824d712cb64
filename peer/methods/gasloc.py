"""GASLoC (arXiv 2606.11081): two partners average their params after an outer step of their own, with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import PAIRED, STREAMED, Caution, Method
from peer.methods.rule import LinearTerms, OuterRule, Row, spread_growth
from peer.methods.topology import PAIR, SOLO
from peer.outer.arithmetic import step_along_

if TYPE_CHECKING:
    from torch import Tensor

    from peer.outer.values import StepBlock, StepConstants

CONSTANTS: dict[str, Any] = {"outer_lr": 1.0, "outer_momentum": 0.3, "consensus": 1.0}
SLOW = 0.85
"""`spread_growth` from which on most of the gain is lost."""


class Gasloc(OuterRule):
    """The outer rule `gasloc`: an own outer step, then the mean of the pair, with momentum.

    The mean over all replicas then makes a Nesterov step."""

    name = "gasloc"
    topologies = (PAIR, SOLO)
    equation = "u = outer - outer_lr * g; outer = u + consensus / 2 * (y - u) + outer_momentum * (u - u_before)"
    since = 3
    consensus = True

    def step(self, block: StepBlock, method: StepConstants) -> None:
        step_along_(block.own, block.outer, block.share * method.outer_lr)
        gasloc_(
            block.outer,
            block.momentum,
            block.own,
            None if block.partner is None else block.spare.copy_(block.partner),
            outer_momentum=method.outer_momentum,
            consensus=method.consensus,
        )

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        lr, pull = method.outer_lr, 0.5 * method.consensus
        sent = terms.outer + lr * (terms.params - terms.outer)
        theirs = terms.their_outer + lr * (terms.their_params - terms.their_outer)
        momentum = pull * (theirs - sent) + method.outer_momentum * (sent - terms.outer + terms.momentum)
        return sent + momentum, momentum

    def sent_lr(self, method: StepConstants) -> float:
        """Return `outer_lr`, because the outer step is made before the exchange."""
        return method.outer_lr

    def follows(self, chosen: Method) -> dict[str, Any]:
        """Return the rule's own constants, which replace those of any preset.

        `fragment_update_alpha` is 0, because a part of the local value would weaken both the momentum and the step
        towards the partner."""
        return CONSTANTS | {"fragment_update_alpha": 0.0}

    def cautions(self, method: Method) -> Iterable[Caution]:
        if method.paired and (growth := spread_growth(method)) >= SLOW:
            yield (
                "outer_momentum",
                f"with outer_momentum {method.outer_momentum:g} and consensus {method.consensus:g} a round of pairs "
                f"leaves {growth:.2f} of the replicas' variance. At 0.86 to 0.99 the loss was from 2.5 % below to 1 % "
                "above that of no exchange, while the preset (0.62) gained 5 %",
            )


def gasloc_(
    outer: Tensor, momentum: Tensor, own: Tensor, partner: Tensor | None, *, outer_momentum: float, consensus: float
) -> None:
    """Make GASLoC's step for a pair in place (arXiv 2606.11081, the accelerated form).

    The equation is from a secondary source, a catalogue's entry, because the paper itself was not available. With
    u = outer + share * outer_lr * (params - outer) (`step_along_`), the partner's y, and d for `momentum`:

        v <- u - outer + d;   outer <- u + consensus / 2 * (y - u) + outer_momentum * v;   d <- outer - u

    `own` is u and `partner` is y; both are overwritten. Without a partner (None), y is u. d is zero at the start, for a
    joiner and after the operator has refounded the run. A skipped round changes neither outer nor d. If values cross
    the wire without loss, the mean over all replicas makes a Nesterov step, independent of the pairing."""
    outer.sub_(own)
    momentum.sub_(outer).mul_(outer_momentum)
    if partner is not None:
        momentum.add_(partner.sub_(own).mul_(0.5 * consensus))
    outer.copy_(own).add_(momentum)


_GASLOC: dict[str, Any] = PAIRED | CONSTANTS | {"rule": Gasloc.name, "codec": "bf16"}

ENTRY = MethodEntry(
    rule=Gasloc(),
    presets=(
        Preset(
            name="gasloc",
            method=Method(**_GASLOC),
            purpose="the same machines as `noloco`: pairs, with Nesterov's step of the mean over all",
            since=3,
        ),
        Preset(
            name="streaming-gasloc",
            method=Method(schedule="streaming", **_GASLOC, **(STREAMED | {"fragment_update_alpha": 0.0})),
            purpose="the same, a fragment at a time",
            since=3,
        ),
    ),
)
