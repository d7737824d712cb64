"""Tests of staggered attempts, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from peer.aio.staggered import first_of
from peer.lab.sim.virtual_clock import run_virtual

STAGGER_S = 0.25


class Race:
    """Attempts that record what happened to them, with times."""

    def __init__(self) -> None:
        self.began: list[tuple[str, float]] = []
        self.ended: list[str] = []
        self.discarded: list[str] = []
        self.discard_s = 0.0

    def attempt(
        self,
        name: str,
        seconds: float,
        result: str | None = None,
        *,
        error: Exception | None = None,
        deaf: bool = False,
    ) -> Callable[[], Awaitable[str | None]]:
        """Return an attempt that takes `seconds`. `deaf`: it returns a result although it is cancelled."""

        async def run() -> str | None:
            self.began.append((name, asyncio.get_running_loop().time()))
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if not deaf:
                    raise
            finally:
                self.ended.append(name)
            if error is not None:
                raise error
            return result

        return run

    async def discard(self, result: str) -> None:
        await asyncio.sleep(self.discard_s)
        self.discarded.append(result)

    async def first(self, *attempts: Callable[[], Awaitable[str | None]]) -> str | None:
        try:
            return await first_of(attempts, STAGGER_S, self.discard)
        finally:
            assert sorted(self.ended) == sorted(name for name, _ in self.began), "nothing is left running"


def scenario(test: Callable[[Race], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test(Race()))

    run.__name__ = test.__name__
    return run


@scenario
async def test_the_first_that_answers_soon_is_the_only_one(race: Race) -> None:
    assert await race.first(race.attempt("one", 0.2, "1"), race.attempt("two", 0.0, "2")) == "1"
    assert race.began == [("one", 0.0)]


@scenario
async def test_each_begins_a_little_after_the_one_before(race: Race) -> None:
    slow = [race.attempt(name, 9.0, name) for name in "abc"]
    assert await race.first(*slow, race.attempt("d", 0.1, "d")) == "d"
    assert race.began == [("a", 0.0), ("b", 0.25), ("c", 0.5), ("d", 0.75)]
    assert asyncio.get_running_loop().time() == pytest.approx(0.85)


@scenario
async def test_one_that_was_begun_earlier_may_win_later(race: Race) -> None:
    assert await race.first(race.attempt("one", 0.4, "1"), race.attempt("two", 9.0, "2")) == "1"
    assert race.ended == ["one", "two"]


@scenario
async def test_a_failure_starts_the_next_at_once(race: Race) -> None:
    lost = [race.attempt("a", 0.1), race.attempt("b", 0.0), race.attempt("c", 0.05)]
    assert await race.first(*lost, race.attempt("d", 0.0, "d")) == "d"
    assert [name for name, _ in race.began] == list("abcd")
    assert [at for _, at in race.began] == pytest.approx([0.0, 0.1, 0.1, 0.15])


@scenario
async def test_when_all_fail_there_is_nothing(race: Race) -> None:
    assert await race.first(*(race.attempt(name, 1.0) for name in "abc")) is None
    assert await race.first() is None


@scenario
async def test_losers_are_cancelled_and_what_they_made_is_discarded(race: Race) -> None:
    deaf = race.attempt("deaf", 9.0, "late", deaf=True)
    assert await race.first(deaf, race.attempt("slow", 9.0, "slow"), race.attempt("quick", 0.1, "quick")) == "quick"
    assert race.discarded == ["late"]


@scenario
async def test_of_two_at_once_the_earlier_attempt_wins(race: Race) -> None:
    race.discard_s = 1.0
    assert await race.first(race.attempt("a", 0.5, "a"), race.attempt("b", 0.25, "b")) == "a"
    assert race.discarded == ["b"]


@scenario
async def test_an_error_does_not_end_the_others(race: Race) -> None:
    broken = race.attempt("broken", 0.1, error=ValueError("broken"))
    assert await race.first(broken, race.attempt("good", 3.0, "good")) == "good"
    assert race.began[1] == ("good", pytest.approx(0.1))


@scenario
async def test_an_error_is_raised_once_no_other_is_under_way(race: Race) -> None:
    broken = race.attempt("broken", 0.1, error=ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await race.first(broken, race.attempt("lost", 5.0))
    assert asyncio.get_running_loop().time() == pytest.approx(5.1)


@scenario
async def test_an_attempt_that_somebody_else_cancels_has_failed(race: Race) -> None:
    async def broken_off() -> str | None:
        raise asyncio.CancelledError  # as gRPC does when it breaks off a call

    assert await race.first(broken_off, race.attempt("good", 0.1, "good")) == "good"
    assert await race.first(broken_off) is None


@scenario
async def test_a_cancellation_leaves_nothing(race: Race) -> None:
    deaf = race.attempt("deaf", 9.0, "late", deaf=True)
    racing = asyncio.create_task(race.first(deaf, race.attempt("slow", 9.0, "slow")))
    await asyncio.wait({racing}, timeout=1.0)
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert race.discarded == ["late"]


@pytest.mark.parametrize("cancelled_at", [0.4, 0.5, 0.7, 1.2])
def test_a_cancellation_at_any_time_loses_no_result(cancelled_at: float) -> None:
    """The cancellation may also come while losing results are discarded."""

    @scenario
    async def attempt(race: Race) -> None:
        race.discard_s = 1.0
        made = [race.attempt("a", 0.5, "a"), race.attempt("b", 0.25, "b"), race.attempt("c", 9.0, "c", deaf=True)]
        racing = asyncio.create_task(race.first(*made))
        await asyncio.wait({racing}, timeout=cancelled_at)
        racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert len(race.discarded) == len(set(race.discarded))
        assert "a" in race.discarded or cancelled_at < 0.5
        assert ("b" in race.discarded) == ("a" in race.discarded)

    attempt()


def test_a_deadline_of_the_caller_is_one() -> None:
    @scenario
    async def attempt(race: Race) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await race.first(*(race.attempt(name, 9.0, name) for name in "ab"))

    attempt()
