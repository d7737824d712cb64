"""The rounds in flight, from snapshot to merge: exchange, outer step, journal, apply. In `full` schedules the trainer
waits for it; in `streaming` it runs in the background, one flight a fragment.

On failure: an exchange that is not done when its fragment is due again is given up (pair: a solo outer
step; group: what was worked is dropped, by name); a trainer that dies takes the merge with it, not the outer step."""

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
"""A trainer that is to stand still may end its inner step within this for a partner that waits, seconds."""


class InFlightRound:
    """One round on its way: looks for partners from the beginning, exchanges once the work is `ready`."""

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

    async def must_stop(self, told: Iterable[asyncio.Future[Any]], due: float | None, clock: Clock) -> None:
        """Return when the trainer has to stop although the round is not due: once one of `told` is done.

        It may go on for a moment where a partner counts on us that has no time left to find another."""
        await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        due_in_s = math.inf if due is None else max(0.0, due - clock.now())
        if self._session is not None and self._session.must_finish(due_in_s):
            await clock.sleep(due_in_s + FINISH_S)


class InFlightRounds:
    """The rounds that are not merged yet, at most one a fragment."""

    def __init__(self, strategy: ExchangeStrategy, committer: RoundCommitter) -> None:
        self._strategy = strategy
        self._committer = committer
        self._flying: dict[int, tuple[RoundKey, InFlightRound]] = {}

    def begin(self, key: RoundKey, opens_at: float, closes_at: float) -> InFlightRound:
        assert key.fragment not in self._flying, key
        flight = InFlightRound(key, self._strategy.open_round(key, opens_at, closes_at), self._committer)
        self._flying[key.fragment] = key, flight
        return flight

    async def await_slot(self, fragment: int, *, patient: bool) -> None:
        """The fragment is due again: unless we are patient, its exchange is given up if it is not done. Raises what
        went wrong in it."""
        if fragment in self._flying:
            if not patient:
                self._flying[fragment][1].due_again.set()
            await self._ended(fragment)

    @property
    def under_way(self) -> bool:
        """Whether the snapshot of one of them is taken, and its end is not yet here."""
        return any(flight.ready.done() and not flight.task.done() for _, flight in self._flying.values())

    async def finish(self) -> None:
        """Wait for all of them. Raises what went wrong."""
        for fragment in list(self._flying):
            await self._ended(fragment)

    async def beside(self, call: Awaitable[T], *told: asyncio.Future[Any]) -> T | None:
        """The call's result, or None when one of `told` was done first; then the call is cancelled. Raises what goes
        wrong in a flight meanwhile: nobody else would see it until the fragment is due again, and the trainer may be
        waiting for its result. (A trainer's death shows in the call too.)"""
        running = asyncio.ensure_future(call)
        try:
            while not running.done():
                flying = {flight.task for _, flight in self._flying.values() if not flight.task.done()}
                await asyncio.wait({running, *flying, *told}, return_when=asyncio.FIRST_COMPLETED)
                for task in flying:
                    if task.done() and (task.cancelled() or not isinstance(task.exception(), TrainerDied)):
                        assert not task.cancelled(), "nobody gave this flight up"
                        task.result()
                if not running.done() and any(one.done() for one in told):
                    return None
            return running.result()
        finally:
            await cancel_and_wait(running)

    async def drop(self, reason: str) -> None:
        """Give all of them up: their work is dropped with the rest of what was not journaled. A trainer that died in
        one of them is known already."""
        for fragment in list(self._flying):
            await self.give_up(fragment, reason)

    async def give_up(self, fragment: int, reason: str) -> None:
        """Give one of them up, as `drop` does."""
        key, flight = self._flying.pop(fragment)
        was_due = flight.ready.done()  # before: the cancelled task cancels what it waits for, too
        flight.task.cancel()
        await asyncio.wait({flight.task})
        if flight.task.cancelled():
            self._committer.missed(key, reason, was_due=was_due)
        elif not isinstance(flight.task.exception(), TrainerDied):
            flight.task.result()

    async def _ended(self, fragment: int) -> None:
        """The flight is forgotten only when it has ended, so that one who is cancelled here can still drop it."""
        _, flight = self._flying[fragment]
        await asyncio.wait({flight.task})
        del self._flying[fragment]
        flight.task.result()
