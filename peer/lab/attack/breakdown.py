"""How many hostile meetings honest peers of a run in pairs withstand, if each clips its partner's params to a radius
about its own (ClippedGossip, arXiv 2202.01545).

The outer rule is NoLoCo's, with its momentum. A peer moves its params x at most by tau towards what its partner sent,
and tau is proportional (slack) to the median distance of its last partners. So replicas that are pushed apart measure
larger distances, and accept larger pushes. At some share of hostile meetings this outweighs the pull of honest ones.
With f liars among n peers the share is f / (n - 1).

The deviations d from the honest mean are independent, and in one round with work w they are

    an honest meeting:   d' = d + m',  m' = a m + b (w + w_j) + b (d_j - d)
    a hostile meeting:   d' = d + m',  m' = a m + 2 b w + b tau u

with the momentum m, a = outer_momentum, b = outer_lr / 2, and a unit vector u that the liar chooses. The worst u points
along d. With a large spread the work is negligible. Then tau is slack * sqrt(2 V), where V is the mean square of d.
With C the mean of <d, m> and M that of <m, m>, a round multiplies (V, C, M) by a matrix that is linear in the share.

Two simplifications err on the safe side: all replicas are assumed to be equally far from the mean, and liars to know
every d."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SLACK = 1.25
"""Radius tau as a multiple of the median distance."""
KEPT = 16
FEWEST = 4
"""Number of distances that are remembered, and the fewest from which the median is used instead of the own work."""
CAP = 3 * math.sqrt(2)
"""Upper bound of the median distance, as a multiple of the own work."""
LOST_SHARE = 1 / (1 + math.sqrt(2))
"""From this share of hostile meetings on, no radius bounds the spread. When replicas are far apart, every meeting moves
a peer by the radius, and of the move in an honest meeting only the fraction 1 / sqrt(2) points to the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipRule:
    """NoLoCo's outer rule with a clip. The defaults are those of the preset."""

    outer_lr: float = 0.7
    outer_momentum: float = 0.5
    slack: float = SLACK

    @property
    def half(self) -> float:
        """The weight of a partner's difference in the step."""
        return self.outer_lr / 2

    @property
    def reach(self) -> float:
        """Radius tau divided by the root mean square of d."""
        return self.slack * math.sqrt(2)


def growth(share: float, rule: GossipRule) -> float:
    """Return the largest factor by which the mean squares grow per round, at this share of hostile meetings."""
    return float(max(abs(np.linalg.eigvals((1 - share) * _honest(rule) + share * _pushed(rule, rule.reach)))))


def safe_share(rule: GossipRule) -> float:
    """Return the share of hostile meetings below which the spread stays bounded, whatever the liars send."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if growth(middle, rule) < 1 else (low, middle)
    return low


def drift(share: float, rule: GossipRule) -> float:
    """Return the most that colluding liars move the honest mean per round when all push in one direction, as a multiple
    of an honest peer's work. A clip about oneself does not bound the sum over rounds; only a check of the loss does.
    Infinite if the spread is not bounded."""
    a, b, ones = rule.outer_momentum, rule.half, np.ones(3)
    pushes = share * (1 - share) * (b * rule.reach) ** 2
    work = (1 - share) * 2 * b**2 + share * rule.outer_lr**2
    matrix = (1 - share) * _honest(rule) + share * _pushed(rule, 0.0) + pushes * np.outer(ones, [1, 0, 0])
    if max(abs(np.linalg.eigvals(matrix))) >= 1:
        return math.inf
    variance = np.linalg.solve(np.eye(3) - matrix, (work + pushes) * ones)[0]
    return float(share * b * rule.reach * math.sqrt(variance + 1) / (1 - a))


def _honest(rule: GossipRule) -> Floats:
    """Return the matrix that maps (V, C, M) over an honest meeting. The partner's deviation is independent of the
    own."""
    a, b = rule.outer_momentum, rule.half
    return np.array(
        [
            [(1 - b) ** 2 + b**2, 2 * a * (1 - b), a**2],
            [b**2 - b * (1 - b), a * (1 - 2 * b), a**2],
            [2 * b**2, -2 * a * b, a**2],
        ]
    )


def _pushed(rule: GossipRule, reach: float) -> Floats:
    """Return the matrix that maps (V, C, M) over a push of length `reach` along d."""
    a, g = rule.outer_momentum, rule.half * reach
    return np.array(
        [[(1 + g) ** 2, 2 * a * (1 + g), a**2], [g * (1 + g), a * (1 + 2 * g), a**2], [g**2, 2 * a * g, a**2]]
    )


@dataclass(slots=True, kw_only=True)
class GossipTrial:
    """A simulation without a model, which checks the derivation: work is noise of length 1, and liars send infinitely
    distant values."""

    peers: int
    liars: int
    seed: int
    push: Literal["apart", "together"] = "apart"
    """"apart": liars push each victim away from the honest mean. "together": all in one direction."""
    capped: bool = False
    """Whether the radius is bounded by the own work (CAP)."""
    rule: GossipRule = field(default_factory=GossipRule)
    dimensions: int = 64
    _distances: list[list[float]] = field(init=False)

    def spreads(self, rounds: int) -> tuple[list[float], float]:
        """Simulate. Return the root mean square of d after each round, and the distance per round that the honest mean
        moved."""
        rng, honest = np.random.default_rng(self.seed), self.peers - self.liars
        outer, momentum = np.zeros((honest, self.dimensions)), np.zeros((honest, self.dimensions))
        self._distances = [[] for _ in range(honest)]
        found = []
        for _ in range(rounds):
            params = outer + rng.normal(size=outer.shape) / math.sqrt(self.dimensions)
            mixed = self._mixed(params, outer, rng)
            momentum = self.rule.outer_momentum * momentum + self.rule.outer_lr * (mixed - outer)
            outer = outer + momentum
            found.append(math.sqrt(((outer - outer.mean(0)) ** 2).sum(1).mean()))
        return found, float(np.linalg.norm(outer.mean(0))) / rounds

    def _mixed(self, params: Floats, outer: Floats, rng: np.random.Generator) -> Floats:
        """Pair all peers at random. Return the honest peers' params after the mean with their clipped partner."""
        mixed, middle = params.copy(), outer.mean(0)
        order = rng.permutation(self.peers)
        for one, other in (*zip(order[::2], order[1::2], strict=True), *zip(order[1::2], order[::2], strict=True)):
            if one >= len(params):
                continue
            radius = self._radius(one, float(np.linalg.norm(params[one] - outer[one])))
            if other < len(params):
                way = params[other] - params[one]
                apart = float(np.linalg.norm(way))
            else:
                way, apart = self._direction(outer[one] - middle, rng), math.inf
            taken = way if apart <= radius else way * (radius / float(np.linalg.norm(way)))
            self._distances[one] = [*self._distances[one], min(apart, 2 * radius)][-KEPT:]
            mixed[one] += taken / 2
        return mixed

    def _radius(self, one: int, work: float) -> float:
        seen, usual = sorted(self._distances[one]), math.sqrt(2) * work
        if len(seen) >= FEWEST:
            usual = max(seen[(len(seen) - 1) // 2], usual)
        return self.rule.slack * (min(usual, CAP * work) if self.capped else usual)

    def _direction(self, deviation: Floats, rng: np.random.Generator) -> Floats:
        if self.push == "together":
            deviation = np.zeros(self.dimensions)
            deviation[0] = 1.0
        return deviation if deviation.any() else rng.normal(size=self.dimensions)
