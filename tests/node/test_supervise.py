"""An error of the rounds, or of a task beside them, must be raised, and all tasks must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from peer.lab.sim.virtual_clock import run_virtual
from peer.node.supervise import run_until_drained
from peer.rounds.loop import RoundLoop


class Rounds:
    """Runs for a number of seconds, then raises."""

    def __init__(self, seconds: float, error: Exception | None = None, leave_after: float | None = None) -> None:
        self._seconds, self._error, self._leave_after = seconds, error, leave_after

    @property
    def leaving(self) -> bool:
        return self._leave_after is not None and asyncio.get_running_loop().time() >= self._leave_after

    async def run(self, first_round: int) -> None:
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error


LIMIT_S = 4.0
ended: list[str] = []


async def beside(error: Exception | None = None) -> None:
    try:
        await asyncio.sleep(1.0 if error else 1e9)
    finally:
        ended.append("beside")
    assert error is not None
    raise error


def played(rounds: Rounds, *others: Coroutine[Any, Any, None]) -> tuple[list[str], float]:
    """Return the lines that were shown, and the time of the end."""

    async def main() -> tuple[list[str], float]:
        said: list[str] = []
        ended.clear()
        await run_until_drained(cast(RoundLoop, rounds), 0, others, said.append, lambda: LIMIT_S)
        return said, asyncio.get_running_loop().time()

    return run_virtual(main())


def test_the_rounds_end_and_all_that_was_beside_them() -> None:
    assert played(Rounds(30.0), beside(), beside()) == ([], 30.0)
    assert ended == ["beside", "beside"]


def test_what_goes_wrong_beside_ends_the_rounds() -> None:
    with pytest.raises(OSError, match="a full disk"):
        played(Rounds(30.0), beside(), beside(OSError("a full disk")))
    assert ended == ["beside", "beside"]


@pytest.mark.parametrize("error", [OSError("a full disk"), TimeoutError("of something in a round")])
def test_what_goes_wrong_in_the_rounds_is_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        played(Rounds(5.0, error), beside())


def test_told_to_leave_it_waits_for_what_is_under_way_but_not_for_long() -> None:
    said, at = played(Rounds(1e6, leave_after=10.0), beside())
    assert said == ["the exchange under way did not end in time; leaving without it"]
    assert 10.0 + LIMIT_S <= at < 11.0 + LIMIT_S
    assert played(Rounds(11.0, leave_after=10.0), beside())[0] == []
