"""`OuterRule`: the interface of outer rules, and two stability checks that are computed from a rule's linear map."""

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
    """Symbolic values of a round, each a unit vector. A linear combination of them describes the result of a rule.

    `their_outer` and `their_params` are those of the partner."""

    outer: Row
    momentum: Row
    params: Row
    their_outer: Row
    their_params: Row


class OuterRule:
    """Base class of outer rules: how the values of an exchange change outer_params and outer_momentum.

    A rule has no state. In its steps, every multiplication and addition is rounded separately, so that all machines
    compute the same bits: see `peer.outer.arithmetic`."""

    name: ClassVar[str]
    """Name in a manifest."""
    topologies: ClassVar[tuple[Topology, ...]]
    """Topologies that the rule works with."""
    equation: ClassVar[str]
    """The step, for the docs. g is the pseudo-gradient or the mean of several, m is outer_momentum."""
    since: ClassVar[int] = 1
    """First format of manifests that has the rule."""
    consensus: ClassVar[bool] = False
    """Whether the rule pulls the replicas of two partners together, so that it can be used in pairs."""
    corrects: ClassVar[bool] = False
    """Whether members of a group correct their pseudo-gradients before sending them (`correct`)."""
    lattice: ClassVar[bool] = False
    """Whether the lattice codecs (modulo) were measured with the rule."""

    def step(self, block: StepBlock, method: StepConstants) -> None:
        """Make the step of a peer in a pair or alone, in place. `block.own` may be overwritten."""
        raise NotImplementedError(self.name)

    def descend(self, outer: Tensor, momentum: Tensor, gradient: Tensor, method: StepConstants) -> None:
        """Make the step of a group, in place. `gradient`: its mean pseudo-gradient, which is overwritten."""
        raise NotImplementedError(self.name)

    def correct(self, gradient: Tensor, momentum: Tensor) -> None:
        """Correct the own pseudo-gradient of one tensor with its momentum, in place. Needs `corrects`."""
        raise NotImplementedError(self.name)

    def linear_map(self, method: Method, terms: LinearTerms) -> tuple[Row, Row]:
        """Return (outer, momentum) after a round without gradients, as linear combinations of `terms`.

        The stability checks use it. In groups and for a peer alone, the terms of a partner do not occur."""
        raise NotImplementedError(self.name)

    def sends_outer(self, method: StepConstants) -> bool:
        """Return whether a peer of a pair sends its outer_params together with its params."""
        return False

    def keeps_momentum(self, method: StepConstants) -> bool:
        """Return whether the step writes outer_momentum."""
        return True

    def sent_lr(self, method: StepConstants) -> float:
        """Return the fraction of a peer's own work that is contained in the values that it sends to its partner."""
        return 1.0

    def fresh_gain(self, method: Method) -> tuple[str, float]:
        """Return the length of the first step along a new pseudo-gradient, relative to it: (formula, value)."""
        return "outer_lr * (1 + outer_momentum)", method.outer_lr * (1 + method.outer_momentum)

    def lasting_gain(self, method: Method) -> tuple[str, float]:
        """Return the length of a step in the long run, relative to a constant pseudo-gradient: (formula, value)."""
        return "outer_lr / (1 - outer_momentum)", method.outer_lr / (1 - method.outer_momentum)

    def follows(self, chosen: Method) -> dict[str, Any]:
        """Return the rule's defaults for keys that the manifest leaves out. `chosen`: the other choices."""
        return {"consensus": 0.0}

    def refusals(self, method: Method) -> Iterable[Refusal]:
        """Return the reasons for which a method with this rule is refused, in addition to `peer.methods.checks`."""
        return ()

    def cautions(self, method: Method) -> Iterable[Caution]:
        """Return the warnings for a method with this rule."""
        return ()


def spread_growth(method: Method) -> float:
    """Return the factor by which the variance of the replicas changes in a round of random pairs without gradients.

    Below 1, the replicas converge. Let x be (outer_params, outer_momentum, params) of a replica minus the mean over all
    replicas. A round maps it to A x + B y, where y belongs to its partner. Among many replicas x and y are independent,
    so that the second moments S of x become A S A' + B S B'. The factor is the spectral radius of this map. It depends
    on `fragment_update_alpha`, because local values that survive a merge are part of the next exchange."""
    own, partner = _round_of(method)
    return float(np.abs(np.linalg.eigvals(np.kron(own, own) + np.kron(partner, partner))).max())


def pull_growth(method: Method) -> float:
    """Return the factor by which the difference between the means of params and outer_params over all replicas changes
    in a round without gradients. Without `fragment_update_alpha`, a merge makes them equal."""
    own, partner = _round_of(method)
    outer, momentum, params = own + partner
    # a common shift of params and outer_params has no effect, so it is left out
    apart = np.stack([momentum, params - outer])[:, 1:]
    return float(np.abs(np.linalg.eigvals(apart)).max())


def _round_of(method: Method) -> tuple[Matrix, Matrix]:
    """Return the matrices A and B of a round, 3 x 3: rule and merge as a linear map of a replica's values (A) and of
    its partner's (B), in the order outer_params, outer_momentum, params. Without a partner, B is zero."""
    outer, momentum, params, their_outer, _, their_params = np.eye(6)
    terms = LinearTerms(outer, momentum, params, their_outer, their_params)
    new_outer, new_momentum = method.outer_rule.linear_map(method, terms)
    new_params = method.fragment_update_alpha * params + (1 - method.fragment_update_alpha) * new_outer
    rows = np.stack([new_outer, new_momentum, new_params])
    return rows[:, :3], rows[:, 3:]
