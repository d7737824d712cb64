"""An outer rule: how the values of an exchange move `outer_params`, and what follows from that for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from peer.methods.topology import Topology

if TYPE_CHECKING:  # checking a manifest loads no torch
    from torch import Tensor

    from peer.methods.method import Caution, Method, Refusal
    from peer.outer.values import StepBlock, StepConstants

Row = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearTerms:
    """The values of a round as unit vectors: a sum of them is what a rule makes of the round."""

    outer: Row
    momentum: Row
    params: Row
    their_outer: Row
    their_params: Row


class OuterRule:
    """A rule without a state of its own. Every multiplication and addition of a step is rounded by itself: see
    `peer.outer.arithmetic`."""

    name: ClassVar[str]
    """Its name in a manifest."""
    topologies: ClassVar[tuple[Topology, ...]]
    equation: ClassVar[str]
    """The step, for the docs. g is the pseudo-gradient or the mean of them, m the momentum."""
    since: ClassVar[int] = 1
    """The format of manifests that knows it."""
    consensus: ClassVar[bool] = False
    """Whether it draws two partners together."""
    corrects: ClassVar[bool] = False
    """Whether the members of a group correct their pseudo-gradients before they send them (`correct`)."""
    lattice: ClassVar[bool] = False
    """Whether the lattice codec (modulo) was measured with it."""

    def step(self, block: StepBlock, method: StepConstants) -> None:
        """Take the step of a pair, or of a peer alone. `block.own` may be overwritten."""
        raise NotImplementedError(self.name)

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None:
        """Take the step of a group. `gradient` is its mean pseudo-gradient, and is overwritten."""
        raise NotImplementedError(self.name)

    def correct(self, gradient: Tensor, momentum: Tensor) -> None:
        """Correct the own pseudo-gradient of a tensor against its momentum, in place."""
        raise NotImplementedError(self.name)

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        """Return (outer, momentum) after a round without gradients. Groups, and peers alone, have no partner."""
        raise NotImplementedError(self.name)

    def sends_outer(self, method: StepConstants) -> bool:
        """Whether outer_params travel with the params of a pair."""
        return False

    def keeps_momentum(self, method: StepConstants) -> bool:
        """Whether the step writes a momentum."""
        return True

    def sent_lr(self, method: StepConstants) -> float:
        """Return the part of its work that a peer of a pair sends."""
        return 1.0

    def fresh_gain(self, method: Method) -> tuple[str, float]:
        """Return how far the first step along a pseudo-gradient goes, in parts of it: as a formula, and its value."""
        return "outer_lr * (1 + outer_momentum)", method.outer_lr * (1 + method.outer_momentum)

    def lasting_gain(self, method: Method) -> tuple[str, float]:
        """Return how far a step goes in the long run, in parts of a pseudo-gradient that stays the same."""
        return "outer_lr / (1 - outer_momentum)", method.outer_lr / (1 - method.outer_momentum)

    def follows(self, chosen: Method) -> dict[str, Any]:
        """Return the choices that follow from the rule, where the manifest says nothing of them."""
        return {"consensus": 0.0}

    def refusals(self, method: Method) -> Iterable[Refusal]:
        """Return what speaks against a method with this rule, besides `peer.methods.checks`."""
        return ()

    def cautions(self, method: Method) -> Iterable[Caution]:
        """Return what a person should know of a method with this rule."""
        return ()


def spread_growth(method: Method) -> float:
    """Return the factor by which the variance of the replicas changes in a round of random pairs without gradients:
    below 1 it shrinks.

    Let x be (outer_params, outer_momentum, params) of a replica, less the mean over all. A round makes A x + B y of it,
    y being its partner's. Among many replicas these two are independent, so the second moments S of x become
    A S A' + B S B'. The factor is the spectral radius of this map. `fragment_update_alpha` is in it: the params that a
    merge keeps are part of the next exchange."""
    own, partner = _round_of(method)
    return float(np.abs(np.linalg.eigvals(np.kron(own, own) + np.kron(partner, partner))).max())


def pull_growth(method: Method) -> float:
    """Return the factor by which the means of params and outer_params over all replicas move apart in a round without
    gradients. A merge that keeps nothing makes them equal."""
    own, partner = _round_of(method)
    outer, momentum, params = own + partner
    apart = np.stack([momentum, params - outer])[:, 1:]  # moving both by the same leaves them as they are
    return float(np.abs(np.linalg.eigvals(apart)).max())


def _round_of(method: Method) -> tuple[Matrix, Matrix]:
    """Return A and B: rule and merge, written as sums of a replica's values and its partner's. The members of a group,
    and replicas alone, have no partner."""
    outer, momentum, params, their_outer, _, their_params = np.eye(6)
    terms = LinearTerms(outer, momentum, params, their_outer, their_params)
    new_outer, new_momentum = method.outer_rule.linear_map(method, terms)
    new_params = method.fragment_update_alpha * params + (1 - method.fragment_update_alpha) * new_outer
    rows = np.stack([new_outer, new_momentum, new_params])
    return rows[:, :3], rows[:, 3:]
