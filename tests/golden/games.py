"""Games for every preset and every branch of the rules. The inner updates are arbitrary, and differ for each replica
and step."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.golden.reference import Game

CUTS = {1: ((0, 16),), 2: ((0, 7), (7, 16)), 3: ((0, 4), (4, 5), (5, 16))}
NOLOCO = {"rule": "noloco", "outer_lr": 0.7, "outer_momentum": 0.5, "consensus": 0.7}
NESTEROV = {"rule": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.5}
GASLOC = {"rule": "gasloc", "outer_lr": 1.0, "outer_momentum": 0.3, "consensus": 1.0}
GASLOC_APART = {"rule": "gasloc", "outer_lr": 1.3, "outer_momentum": 0.4, "consensus": 0.6}
HELOCO = {"rule": "heloco", "outer_lr": 0.7, "outer_momentum": 0.6}
STREAMED = {"fragments": 2, "delay": 1, "alpha": 0.5}


def game(
    seed: int,
    *,
    replicas: int,
    fragments: int = 1,
    sync_every: int = 6,
    periods: int = 3,
    group: bool = False,
    **rest: Any,
) -> Game:
    """Return a game with random numbers that are representable in fp32. In pairs the partners are drawn in each round
    and the odd peer is alone. In groups all have the same start, and weights are drawn in each round."""
    rng = np.random.default_rng(seed)
    slots = rest.get("slots") or (1,) * (periods * fragments)
    rounds, elements = len(slots), CUTS[fragments][-1][1]
    starts = rng.normal(size=(1 if group else replicas, elements)).repeat(replicas if group else 1, axis=0)
    updates = 0.1 * rng.normal(size=(sum(slots) * sync_every // fragments, replicas, elements))
    drawn: dict[str, Any] = {
        "meetings": tuple((tuple(range(replicas)),) for _ in range(rounds)),
        "tokens": rng.integers(1, 1000, size=(rounds, replicas)).astype(np.float64),
    }
    if not group:
        drawn = {"meetings": tuple(_pairs(rng.permutation(replicas).tolist()) for _ in range(rounds)), "tokens": None}
    return Game(
        sync_every=sync_every,
        fragments=CUTS[fragments],
        start=starts.astype(np.float32).astype(np.float64),
        updates=updates.astype(np.float32).astype(np.float64),
        **(drawn | rest),
    )


def _pairs(order: list[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(order[at : at + 2]) for at in range(0, len(order), 2))


def alone(replicas: int, rounds: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(tuple((who,) for who in range(replicas)) for _ in range(rounds))


def grid() -> dict[str, Game]:
    """Return games for both streaming methods, with each number of fragments, delay and alpha."""
    made = {}
    for seed, (fragments, delay, alpha) in enumerate(np.ndindex(3, 4, 3)):
        choices = {
            "fragments": fragments + 1,
            "delay": delay,
            "alpha": alpha / 2,
            "replicas": 2 + seed % 4,
            "periods": 2,
        }
        name = f"{choices['fragments']} fragments, delay {delay}, alpha {alpha / 2}, {choices['replicas']} replicas"
        made[f"noloco, {name}"] = game(seed, **NOLOCO, **choices)
        made[f"nesterov, {name}"] = game(seed, group=True, **NESTEROV, **choices)
    return made


TEN = {"periods": 10, "sync_every": 4}
TEN_ROUNDS = {
    "noloco": game(40, replicas=6, **NOLOCO, **TEN),
    "noloco, consensus apart": game(41, replicas=6, **(NOLOCO | {"consensus": 0.3}), **TEN),
    "noloco of five": game(42, replicas=5, **NOLOCO, **TEN),
    "gasloc": game(43, replicas=6, **GASLOC, **TEN),
    "gasloc of five": game(44, replicas=5, **GASLOC_APART, **TEN),
    "nesterov": game(45, replicas=4, group=True, **NESTEROV, **TEN),
    "sgd": game(46, replicas=4, group=True, rule="sgd", outer_lr=0.5, outer_momentum=0.0, **TEN),
    "noloco alone": game(47, replicas=1, **NOLOCO, **TEN),
    "gasloc alone": game(48, replicas=1, **GASLOC, **TEN),
    "nesterov alone": game(49, replicas=1, meetings=alone(1, 10), **NESTEROV, **TEN),
    "sgd alone": game(50, replicas=1, meetings=alone(1, 10), rule="sgd", outer_lr=1.0, outer_momentum=0.0, **TEN),
}
"""Games of ten rounds for every rule with every kind of partner."""
GAMES = {
    "gossip": game(33, replicas=5, rule="noloco", outer_lr=1.0, outer_momentum=0.0, consensus=1.0),
    "noloco": game(1, replicas=2, **NOLOCO),
    "noloco of five": game(2, replicas=5, **NOLOCO),
    "noloco, consensus apart": game(3, replicas=3, **(NOLOCO | {"consensus": 0.3})),
    "noloco, work piled up": game(
        4,
        replicas=3,
        meetings=(((0, 1),), ((0, 2), (1,)), ((0, 1), (2,))),  # 2 is away in round 0
        shares={(1, 2): 0.5, (2, 2): 0.75, (2, 1): 0.25},
        **NOLOCO,
    ),
    "streaming-noloco": game(5, replicas=4, **NOLOCO, **STREAMED),
    "streaming-noloco, consensus apart": game(6, replicas=4, **(NOLOCO | {"consensus": 0.4}), **STREAMED),
    "diloco": game(7, replicas=4, group=True, **NESTEROV),
    "diloco of one": game(8, replicas=1, group=True, **NESTEROV),
    "diloco, a shard lost, a late one, a round without roster": game(
        9,
        replicas=3,
        group=True,
        lost={0: ((0, 3), (7, 9)), 3: ((10, 16),)},
        meetings=(((0, 1, 2),), ((0, 1, 2),), (), ((0, 1, 2),)),
        tokens=np.array([[3.0, 5.0, 8.0], [2.0, 0.0, 7.0], [1.0, 1.0, 1.0], [4.0, 6.0, 1.0]]),
        shares={(3, 0): 0.5, (3, 1): 0.25},
        periods=4,
        **NESTEROV,
    ),
    "streaming-diloco": game(10, replicas=3, group=True, **NESTEROV, **STREAMED),
    "streaming-diloco, two fragments on their way": game(
        11, replicas=2, group=True, **NESTEROV, fragments=3, delay=3, alpha=0.5
    ),
    "streaming-noloco, rounds of three and of two steps": game(
        15, replicas=3, sync_every=8, periods=4, **NOLOCO, fragments=3, delay=1, alpha=0.5
    ),
    "streaming-diloco, rounds that grow": game(
        16, replicas=3, group=True, sync_every=5, slots=(1, 1, 1, 2, 2, 3, 1), **NESTEROV, **STREAMED
    ),
    "qsr": game(17, replicas=3, group=True, slots=(1, 1, 2, 3, 3), rule="sgd", outer_lr=1.0, outer_momentum=0.0),
    "sgd in a group": game(12, replicas=3, group=True, rule="sgd", outer_lr=0.5, outer_momentum=0.0),
    "sgd alone": game(13, replicas=1, meetings=alone(1, 3), rule="sgd", outer_lr=0.5, outer_momentum=0.0),
    "snoo": game(15, replicas=2, meetings=alone(2, 3), **NESTEROV),
    "snoo, work piled up": game(16, replicas=1, meetings=((), *alone(1, 2)), shares={(1, 0): 0.5}, **NESTEROV),
    "streaming-snoo": game(17, replicas=1, meetings=alone(1, 6), **NESTEROV, **STREAMED),
    "gasloc": game(18, replicas=2, **GASLOC),
    "gasloc of five": game(19, replicas=5, **GASLOC_APART),
    "gasloc, work piled up": game(
        30,
        replicas=3,
        meetings=(((0, 1),), ((0, 2), (1,)), ((0, 1), (2,))),  # 2 is away in round 0
        shares={(1, 2): 0.5, (2, 2): 0.75, (2, 1): 0.25},
        **GASLOC_APART,
    ),
    "streaming-gasloc": game(31, replicas=4, **GASLOC, **STREAMED),
    "streaming-gasloc, an outer_lr of its own": game(32, replicas=3, **GASLOC_APART, **STREAMED),
    "heloco": game(34, replicas=4, group=True, periods=6, **HELOCO),
    "streaming-heloco": game(35, replicas=3, group=True, periods=6, **HELOCO, **STREAMED),
    "none": game(14, replicas=2, meetings=alone(2, 3), rule="sgd", outer_lr=1.0, outer_momentum=0.0),
}
