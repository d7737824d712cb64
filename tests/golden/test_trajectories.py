"""Compares the program's outer step and merge with the equations: every parameter of every replica after every inner
step."""

from __future__ import annotations

import pytest

from tests.golden.driver import Driver
from tests.golden.games import GAMES, TEN_ROUNDS, grid
from tests.golden.reference import Game, check, play


@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
@pytest.mark.parametrize("late", [False, True], ids=["stepped when due", "stepped at the merge"])
def test_a_preset_is_its_equations(game: Game, late: bool) -> None:
    check(Driver(game, late).play(), play(game), game)


def test_every_streaming_schedule_is_its_equations() -> None:
    for game in grid().values():
        check(Driver(game).play(), play(game), game)


@pytest.mark.parametrize("game", TEN_ROUNDS.values(), ids=TEN_ROUNDS)
def test_ten_rounds_of_a_rule_are_its_equations(game: Game) -> None:
    assert len(game.meetings) == 10
    check(Driver(game).play(), play(game), game)
