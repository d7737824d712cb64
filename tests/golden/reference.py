"""What every method computes, written down from the equations in float64 numpy: params, outer params and momentum of
every replica after every inner step. This module must not import the program, because an error in shared code would
affect both sides and remain hidden.

Time. Inner steps are t = 1..T. Round r is due after step floor(s * sync_every / P), where s is the number of slots of
the rounds up to it, one each if they do not grow; its fragment is r mod P. There a replica's params are taken (the
snapshot theta), and its outer step is a function of what the members of its meeting had at that moment. The result is
merged right after step due + delay: theta <- alpha * theta + (1 - alpha) * phi. The outer step itself may be computed
at any time between the two.

With g = share * (phi - theta), phi being the outer params since the fragment's last outer step (never merged ones),
means over the meeting, where each weighs 1/n, and G the mean of g weighted by tokens:

    noloco    m <- mu m - lr mean(g) - consensus (phi - mean(phi));  phi <- phi + m
    gasloc    u = phi - lr g, y that of the other or alone u;        phi <- u + consensus/2 (y - u) + mu (u - phi + m)
              m <- the new phi less u
    nesterov  m <- mu m + G;                                         phi <- phi - lr (G + mu m)
    sgd                                                              phi <- phi - lr G
    heloco    m <- mu m + (1 - mu) H;                                phi <- phi - lr (H + mu m)

where H is the mean of the g of heloco, each turned towards m: with c their cosine, |.| lengths, s = |g| / (|g| + 3 |m|)

    c >= .2  g;        c < 0  g - b c |g| m/|m|,  b = min(-c s / 2, 1/2)
    else     |g| u/|u|,  u = (1 - t) g/|g| + t m/|m|,  t = min((1 - c) s, 1)

With eager updates (arXiv 2502.12996) each member of a group has a phi and m of its own besides those that all share. It
feeds its own with G of a period ago, in which its own part is fresh, and theta is that phi from then on:

    x = G' + (g - g') / M,  in the first round g / M, a prime for the period before;  nesterov or sgd with x for G

The shared phi and m take the whole G of the same g. They do so when the exchange is over, at most `delay` later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Span = tuple[int, int]

TOLERANCE = 1e-6
"""Largest error of an element as a part of its replica's largest outer parameter. A value passes through a dozen or so
fp32 roundings a round, each of at most 6e-8 of itself, some of which add up; the games here come to 5.1e-7 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """A game: M replicas with N parameters each, and T inner steps."""

    rule: str
    outer_lr: float
    outer_momentum: float
    consensus: float = 0.0
    sync_every: int
    delay: int = 0
    """Eager: number of steps in which an exchange completes."""
    alpha: float = 0.0
    eager: bool = False
    fragments: tuple[Span, ...]
    start: Vector
    """[M, N]: params and outer params before the first step."""
    updates: Vector
    """[T, M, N]: the updates that the inner optimizer adds to the params."""
    meetings: tuple[tuple[tuple[int, ...], ...], ...]
    """For each round, the sets of replicas that exchange. A replica in no set makes no outer step and has nothing to
    merge; one in a set of its own makes a solo step."""
    tokens: Vector | None = None
    """[rounds, M]: weights of a group's members; 0: the member applies the result without having contributed. None: a
    rule for pairs, with equal weights."""
    shares: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(round, replica) -> the part of its work that counts; default 1."""
    lost: Mapping[int, tuple[Span, ...]] = field(default_factory=dict)
    """Round -> elements of the fragment for which there is no mean."""

    slots: tuple[int, ...] = ()
    """The length of each round in slots. Empty: one each."""

    @property
    def due(self) -> dict[int, int]:
        """Inner step -> the round that is due after it."""
        slots = self.slots or (1,) * len(self.meetings)
        ends = np.floor(np.cumsum(slots) * (self.sync_every / len(self.fragments)) + 1e-9)
        return {int(step): round_ for round_, step in enumerate(ends)}

    def share(self, round_: int, replica: int) -> float:
        return self.shares.get((round_, replica), 1.0)


@dataclass(slots=True)
class Replica:
    theta: Vector
    phi: Vector
    m: Vector
    before: dict[Span, tuple[Vector, Vector]] = field(default_factory=dict)
    """Fragment -> (phi, m) without the result that is not merged yet."""
    own: dict[Span, Own] = field(default_factory=dict)
    """Eager: the member's own state."""


@dataclass(slots=True)
class Own:
    """Eager: a member's own phi and m of a fragment, its g of the last period, and the mean over all."""

    phi: Vector
    m: Vector
    g: Vector
    mean: Vector


@dataclass(frozen=True, slots=True)
class Moment:
    """A replica after an inner step. For a fragment in `before` the outer step may or may not have been computed."""

    params: Vector
    outer: Vector
    momentum: Vector
    before: dict[Span, tuple[Vector, Vector]]


Expected = dict[tuple[int, int], Moment]
"""(replica, inner step) -> expected moment; steps start at 1."""


def play(game: Game) -> Expected:
    assert 0 <= game.delay < game.sync_every, "a result is merged before its fragment is due again"
    assert list(chain(*game.fragments)) == sorted(chain(*game.fragments))
    world = [Replica(start.copy(), start.copy(), np.zeros_like(start)) for start in game.start]
    merges: dict[int, list[tuple[int, Span]]] = {}
    moments: Expected = {}
    for step, updates in enumerate(game.updates, 1):
        for replica, update in zip(world, updates, strict=True):
            replica.theta += update
        if (round_ := game.due.get(step)) is not None:
            span = game.fragments[round_ % len(game.fragments)]
            for meeting in game.meetings[round_]:
                (eager_step if game.eager else outer_step)(game, world, round_, span, meeting)
                merges.setdefault(step + game.delay, []).extend((who, span) for who in meeting)
        for who, span in merges.pop(step, []):
            if not game.eager:
                merge(world[who], span, game.alpha)
            del world[who].before[span]
        for who, replica in enumerate(world):
            now = (replica.theta.copy(), replica.phi.copy(), replica.m.copy())
            moments[who, step] = Moment(*now, dict(replica.before))
    return moments


def outer_step(game: Game, world: list[Replica], round_: int, span: Span, meeting: tuple[int, ...]) -> None:
    part = slice(*span)
    phi = {who: world[who].phi[part].copy() for who in meeting}
    m = {who: world[who].m[part].copy() for who in meeting}
    g = {who: game.share(round_, who) * (phi[who] - world[who].theta[part]) for who in meeting}
    lost = np.zeros(span[1] - span[0], dtype=bool)
    for start, end in game.lost.get(round_, ()):
        lost[start:end] = True
    for who in meeting:
        new_phi, new_m = RULES[game.rule](game, who, phi, m[who], g, weights(game, round_, meeting))
        world[who].before[span] = phi[who], m[who]
        world[who].phi[part] = np.where(lost, phi[who], new_phi)
        world[who].m[part] = np.where(lost, m[who], new_m)


def eager_step(game: Game, world: list[Replica], round_: int, span: Span, meeting: tuple[int, ...]) -> None:
    part, zero = slice(*span), np.zeros(span[1] - span[0])
    for who in meeting:
        world[who].own.setdefault(span, Own(world[who].phi[part].copy(), zero, zero, zero))
    g = {who: world[who].own[span].phi - world[who].theta[part] for who in meeting}
    mean = sum(weights(game, round_, meeting)[who] * g[who] for who in meeting)
    for who in meeting:
        replica, own = world[who], world[who].own[span]
        x = own.mean + (g[who] - own.g) / len(meeting)
        own.phi, own.m = RULES[game.rule](game, who, {who: own.phi}, own.m, {who: x}, {who: 1.0})
        own.g, own.mean = g[who], mean
        replica.theta[part] = own.phi
        replica.before[span] = replica.phi[part].copy(), replica.m[part].copy()
        shared = RULES[game.rule](game, who, {who: replica.phi[part]}, replica.m[part], {who: mean}, {who: 1.0})
        replica.phi[part], replica.m[part] = shared


def weights(game: Game, round_: int, meeting: tuple[int, ...]) -> dict[int, float]:
    """Return the weight of each pseudo-gradient; they sum to 1."""
    given = {who: 1.0 if game.tokens is None else float(game.tokens[round_][who]) for who in meeting}
    return {who: weight / sum(given.values()) for who, weight in given.items()}


def noloco(game: Game, who: int, phi: Any, m: Vector, g: Any, w: Any) -> tuple[Vector, Vector]:
    mean_g, mean_phi = sum(g.values()) / len(g), sum(phi.values()) / len(phi)
    step = game.outer_momentum * m - game.outer_lr * mean_g - game.consensus * (phi[who] - mean_phi)
    kept = game.outer_momentum or game.consensus != game.outer_lr  # gossip has no momentum
    return phi[who] + step, step if kept else m


def gasloc(game: Game, who: int, phi: Any, m: Vector, g: Any, w: Any) -> tuple[Vector, Vector]:
    """(arXiv 2606.11081, from a catalogue's entry) theta(t+1) = u(t) - Lambda u(t) + gamma (u(t) - u(t-1)), where
    Lambda u is consensus times half of the way from the other's u."""
    u = {one: phi[one] - game.outer_lr * g[one] for one in g}
    y = next((u[other] for other in u if other != who), u[who])
    u_before = phi[who] - m
    new_phi = u[who] - game.consensus * (u[who] - y) / 2 + game.outer_momentum * (u[who] - u_before)
    return new_phi, new_phi - u[who]


def nesterov(game: Game, who: int, phi: Any, m: Vector, g: Any, w: Any) -> tuple[Vector, Vector]:
    mean_g = sum(w[other] * g[other] for other in g)
    m = game.outer_momentum * m + mean_g
    return phi[who] - game.outer_lr * (mean_g + game.outer_momentum * m), m


def sgd(game: Game, who: int, phi: Any, m: Vector, g: Any, w: Any) -> tuple[Vector, Vector]:
    return phi[who] - game.outer_lr * sum(w[other] * g[other] for other in g), m


def heloco(game: Game, who: int, phi: Any, m: Vector, g: Any, w: Any) -> tuple[Vector, Vector]:
    """(arXiv 2606.00271, from a catalogue's entry)"""
    mean_g = sum(w[other] * turned(g[other], m) for other in g)
    m = game.outer_momentum * m + (1 - game.outer_momentum) * mean_g
    return phi[who] - game.outer_lr * (mean_g + game.outer_momentum * m), m


def turned(g: Vector, m: Vector) -> Vector:
    long_g, long_m = np.linalg.norm(g), np.linalg.norm(m)
    if long_m == 0:
        return g
    c, s = g @ m / (long_g * long_m), long_g / (long_g + 3 * long_m)
    if c >= 0.2:
        return g
    if c < 0:
        return g - min(-c * s / 2, 0.5) * c * long_g * m / long_m
    t = min((1 - c) * s, 1.0)
    u = (1 - t) * g / long_g + t * m / long_m
    return long_g * u / np.linalg.norm(u)


RULES = {"noloco": noloco, "gasloc": gasloc, "nesterov": nesterov, "sgd": sgd, "heloco": heloco}


def merge(replica: Replica, span: Span, alpha: float) -> None:
    part = slice(*span)
    replica.theta[part] = alpha * replica.theta[part] + (1 - alpha) * replica.phi[part]


# -- the comparison ----------------------------------------------------------------------------------------------------


class Differs(AssertionError):
    """The program computed a different value."""


Trajectory = Mapping[tuple[int, int], tuple[NDArray[Any], ...]]
"""(replica, inner step) -> (params, outer params) or (params, outer params, momentum), each [N]."""


def check(trajectory: Trajectory, expected: Expected, game: Game, tolerance: float = TOLERANCE) -> float:
    """Compare a whole run and return the largest error. Raises Differs at the first error above the tolerance, naming
    its position, and if the set of moments differs."""
    if trajectory.keys() != expected.keys():
        raise Differs(f"moments differ: {sorted(trajectory.keys() ^ expected.keys())[:5]}")
    worst = 0.0
    for at in sorted(expected, key=lambda at: (at[1], at[0])):
        for span in game.fragments:
            error, what = _error(trajectory[at], expected[at], span)
            worst = max(worst, error)
            if not error <= tolerance:  # NaN too
                raise Differs(f"{what} of replica {at[0]} after step {at[1]}, elements {span}: off by {error:.1e}")
    return worst


def _error(got: tuple[NDArray[Any], ...], moment: Moment, span: Span) -> tuple[float, str]:
    """Return the largest error and the quantity that has it. While a fragment's outer step is being computed, the
    values before and after it are both correct."""
    part = slice(*span)
    scale = float(np.abs(moment.outer).max())

    def off(values: NDArray[Any], exact: Vector, name: str) -> tuple[float, str]:
        return float(np.abs(values[part].astype(np.float64) - exact).max()) / scale, name

    def outer_off(phi: Vector, m: Vector) -> tuple[float, str]:
        outer = off(got[1], phi, "outer params")
        return outer if len(got) == 2 else max(outer, off(got[2], m, "momentum"))

    after = outer_off(moment.outer[part], moment.momentum[part])
    nearest = min(after, outer_off(*moment.before[span])) if span in moment.before else after
    return max(nearest, off(got[0], moment.params[part], "params"))
