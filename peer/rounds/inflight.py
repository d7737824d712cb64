"""Rounds in flight: from the opening of a round to the merge of its result. In `full` schedules the trainer waits for
the round; in `streaming` schedules each fragment's round runs in the background.

On failure: an exchange that has not ended when its fragment is due again is cancelled. A pair then takes a solo outer
step, and a group drops the work and journals it. If the trainer dies, the merge is lost but the outer step is kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from peer.aio.events import Latch
from peer.aio.tasks import cancel_and_wait
from peer.errors import TrainerDied
from peer.exchange.strategy import ExchangeSession, ExchangeStrategy
from peer.ports.clock import Clock
from peer.protocol.messages import RoundKey
from peer.rounds.commit import RoundCommitter, Snapshot

T = TypeVar("T")

FINISH_S = 1.0
"""A trainer that has to stop gets this many seconds to finish its inner step if a partner waits for its work."""


class InFlightRound:
    """One round in flight. Searches for partners from the beginning, and exchanges once `ready` has the trainer's
    snapshot."""

    def __init__(
        self, key: RoundKey, opened: AbstractAsyncContextManager[ExchangeSession], committer: RoundCommitter
    ) -> None:
        self.ready: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._session: ExchangeSession | None = None
        self._key = key
        self.due_again = Latch()
        self._committer = committer
        self.task = asyncio.create_task(self._fly(opened))

    async def _fly(self, opened: AbstractAsyncContextManager[ExchangeSession]) -> None:
        async with opened as session:
            self._session = session
            apart = await self._committer.follow(session, self._key, self.ready)
            ready = await self.ready
            if apart:
                self._committer.sit_out(self._key, "the group's state came in the moment in which the round was due")
                merge = None
            else:
                merge = await self._committer.exchange_and_step(session, ready, self.due_again)
        if merge is None:
            self._committer.release(ready.work.key)
        else:
            await self._committer.merge(ready.work, merge)

    async def must_stop(self, stop_signals: Iterable[asyncio.Future[Any]], due: float | None, clock: Clock) -> None:
        """Wait until the trainer has to stop although the round is not due yet: until one of `stop_signals` is done.

        The trainer may continue until the round is due if a partner counts on this exchange and has no time left to
        find another peer. `due`: run time; None: the round is counted in steps."""
        await asyncio.wait(stop_signals, return_when=asyncio.FIRST_COMPLETED)
        due_in_s = math.inf if due is None else max(0.0, due - clock.now())
        if self._session is not None and self._session.must_finish(due_in_s):
            await clock.sleep(due_in_s + FINISH_S)


class InFlightRounds:
    """The rounds that are not merged yet, at most one for each fragment."""

    def __init__(self, strategy: ExchangeStrategy, committer: RoundCommitter) -> None:
        self._strategy = strategy
        self._committer = committer
        self._flying: dict[int, tuple[RoundKey, InFlightRound]] = {}

    def begin(self, key: RoundKey, opens_at: float, closes_at: float) -> InFlightRound:
        """Open a round and start it. `opens_at`, `closes_at`: its window for finding partners, run times."""
        assert key.fragment not in self._flying, key
        flight = InFlightRound(key, self._strategy.open_round(key, opens_at, closes_at), self._committer)
        self._flying[key.fragment] = key, flight
        return flight

    async def await_slot(self, fragment: int, *, patient: bool) -> None:
        """Wait until the fragment's former round has ended. Cancel its exchange first, unless `patient`. Raises the
        error of that round."""
        if fragment in self._flying:
            if not patient:
                self._flying[fragment][1].due_again.set()
            await self._ended(fragment)

    @property
    def under_way(self) -> bool:
        """Whether a round has its snapshot and has not ended."""
        return any(flight.ready.done() and not flight.task.done() for _, flight in self._flying.values())

    async def finish(self) -> None:
        """Wait until all rounds have ended. Raises the first error of a round."""
        for fragment in list(self._flying):
            await self._ended(fragment)

    async def run_beside(self, call: Awaitable[T], *stop_signals: asyncio.Future[Any]) -> T | None:
        """Await `call` and return its result, or cancel it and return None once one of `stop_signals` is done.

        Meanwhile it raises the errors of rounds in flight, except TrainerDied, which the call raises itself. Such an
        error must not wait until its fragment is due again, because the trainer may be waiting for the result of that
        round."""
        running = asyncio.ensure_future(call)
        try:
            while not running.done():
                flying = {flight.task for _, flight in self._flying.values() if not flight.task.done()}
                await asyncio.wait({running, *flying, *stop_signals}, return_when=asyncio.FIRST_COMPLETED)
                for task in flying:
                    if task.done() and (task.cancelled() or not isinstance(task.exception(), TrainerDied)):
                        assert not task.cancelled(), "nobody gave this flight up"
                        task.result()
                if not running.done() and any(one.done() for one in stop_signals):
                    return None
            return running.result()
        finally:
            await cancel_and_wait(running)

    async def drop(self, reason: str) -> None:
        """Cancel all rounds. Their work is dropped with all work that is not journaled. A TrainerDied of a round is
        ignored, as it is known already."""
        for fragment in list(self._flying):
            await self.give_up(fragment, reason)

    async def give_up(self, fragment: int, reason: str) -> None:
        """Cancel the fragment's round, as `drop` does."""
        key, flight = self._flying.pop(fragment)
        was_due = flight.ready.done()  # read first: cancelling the task cancels this future, too
        flight.task.cancel()
        await asyncio.wait({flight.task})
        if flight.task.cancelled():
            self._committer.journal_missed(key, reason, was_due=was_due)
        elif not isinstance(flight.task.exception(), TrainerDied):
            flight.task.result()

    async def _ended(self, fragment: int) -> None:
        """Wait for the fragment's round. It is removed only after it has ended, so that if this wait is cancelled,
        `drop` still finds it."""
        _, flight = self._flying[fragment]
        await asyncio.wait({flight.task})
        del self._flying[fragment]
        flight.task.result()
