"""Games small enough to compute by hand, with literal results: they detect an error that both the reference and the
program have. All numbers are short binary fractions, so nothing is rounded and results must be equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.golden.driver import Driver
from tests.golden.reference import Game, play

SAME = np.ones((2, 1))
WEIGHTS = {"start": SAME, "tokens": np.array([[1.0, 3.0]] * 2)}
HALF = {"outer_lr": 0.5, "outer_momentum": 0.5}


def tiny(**choices: Any) -> Game:
    """Two replicas that start at 1 and 3, with one parameter. Each step adds .5 to the first and subtracts 1 from the
    second."""
    defaults: dict[str, Any] = {
        "sync_every": 2,
        "fragments": ((0, 1),),
        "start": np.array([[1.0], [3.0]]),
        "updates": np.array([[[0.5], [-1.0]]] * 4),
        "meetings": (((0, 1),),) * 2,
    }
    return Game(**(defaults | HALF | choices))


# After two steps a pair from 1 and 3 has params 2 and 1. With consensus .25: mean(g) = (-1 + 2) / 2, so
# m = -.25 -+ .25 = 0 and -.5, and the outer params become 1 and 2.5. Per case: (params, outer params, momentum) of both
# replicas after each step named.
CASES = {
    "noloco, consensus .25": (
        tiny(rule="noloco", consensus=0.25),
        {2: [(1, 1, 0), (2.5, 2.5, -0.5)], 4: [(0.9375, 0.9375, -0.0625), (1.8125, 1.8125, -0.6875)]},
    ),
    "noloco": (
        tiny(rule="noloco", consensus=0.5),
        {2: [(1.25, 1.25, 0.25), (2.25, 2.25, -0.75)], 4: [(1.375, 1.375, 0.125), (1.375, 1.375, -0.875)]},
    ),
    "noloco, merged a step later by half": (
        tiny(rule="noloco", consensus=0.5, delay=1, alpha=0.5),
        {
            2: [(2, 1.25, 0.25), (1, 2.25, -0.75)],
            3: [(1.875, 1.25, 0.25), (1.125, 2.25, -0.75)],
            4: [(2.375, 1.375, 0.125), (0.125, 1.375, -0.875)],
        },
    ),
    "noloco, each alone, half of the first's work left out": (
        tiny(rule="noloco", consensus=0.5, meetings=(((0,), (1,)),) * 2, shares={(1, 0): 0.5}),
        {2: [(1.5, 1.5, 0.5), (2, 2, -1)], 4: [(2, 2, 0.5), (0.5, 0.5, -1.5)]},
    ),
    "nesterov, weights 1 and 3": (
        tiny(rule="nesterov", **WEIGHTS),
        {2: [(0.0625, 0.0625, 1.25)] * 2, 4: [(-1.03125, -1.03125, 1.875)] * 2},
    ),
    "nesterov, merged a step later by three quarters": (
        tiny(rule="nesterov", delay=1, alpha=0.25, **WEIGHTS),
        {
            2: [(2, 0.0625, 1.25), (-1, 0.0625, 1.25)],
            3: [(0.671875, 0.0625, 1.25), (-0.453125, 0.0625, 1.25)],
            4: [(1.171875, -0.73828125, 1.484375), (-1.453125, -0.73828125, 1.484375)],
        },
    ),
    "sgd, weights 1 and 3": (
        tiny(rule="sgd", **WEIGHTS),
        {2: [(0.375, 0.375, 0)] * 2, 4: [(-0.25, -0.25, 0)] * 2},
    ),
}


@pytest.mark.parametrize(("game", "after"), CASES.values(), ids=CASES)
def test_the_numbers_of_one_parameter(game: Game, after: dict[int, list[tuple[float, ...]]]) -> None:
    expected, got = play(game), Driver(game).play()
    for step, replicas in after.items():
        for who, numbers in enumerate(replicas):
            moment = expected[who, step]
            assert (moment.params[0], moment.outer[0], moment.momentum[0]) == numbers, (who, step)
            assert tuple(float(values[0]) for values in got[who, step]) == numbers, (who, step)


def test_the_numbers_of_two_fragments_in_turn() -> None:
    game = Game(
        rule="nesterov",
        sync_every=2,
        delay=1,
        alpha=0.5,
        fragments=((0, 1), (1, 2)),
        start=np.ones((2, 2)),
        updates=np.array([[[0.5, 0.5], [-1.0, 1.0]]] * 4),
        meetings=(((0, 1),),) * 4,
        tokens=np.ones((4, 2)),
        **HALF,
    )
    params = [[1.44140625, 2.8125], [-0.80859375, 4.0625]]
    for who in (0, 1):
        moment, got = play(game)[who, 4], Driver(game).play()[who, 4]
        for values in ((moment.params, moment.outer, moment.momentum), got):
            assert values[0].tolist() == params[who]
            assert values[1].tolist() == [0.4765625, 3.296875]
            assert values[2].tolist() == [0.53125, -2.0625]
