"""Evaluations of `outer_params`: how long one takes here, and whether the last one was of the last state."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from peer.aio.events import Shutdown
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.clock import Clock
from peer.ports.trainer import Trainer
from peer.rounds.status import RoundStatus

LAST_MOST_S = 15.0
"""Seconds that a peer which is told to leave gives an evaluation of its last state, at most."""
LEAST_S = 2.0
"""Seconds that the last evaluation may take beyond twice what others took."""

T = TypeVar("T")


class Evaluations:
    """Has the trainer evaluate `outer_params`. `still` is held while they may not move."""

    def __init__(
        self,
        trainer: Trainer,
        outer: OuterState,
        clock: Clock,
        still: AbstractAsyncContextManager[None],
        live: RoundStatus,
        leaving: Shutdown,
        emit: Callable[[events.Event], None],
    ) -> None:
        self._trainer = trainer
        self._outer = outer
        self._clock = clock
        self._still = still
        self._live = live
        self._leaving = leaving
        self._emit = emit
        self._took_s = 0.0
        """Of the longest of the last evaluations; 0 before the first one."""
        self._of = -1
        """The state that was evaluated last, as `OuterState.begun` numbers them."""

    async def evaluate(self, round_: int, own_too: bool = False) -> None:
        """Evaluate, and journal the result. Told to leave in the middle of it, give it up. Raises TrainerDied."""
        self._live.is_doing("evaluating")
        async with self._still:
            began, of = self._clock.now(), self._outer.begun
            result = await self._unless_leaving(self._trainer.evaluate(self._outer.params))
            took = self._clock.now() - began
        if result is None:
            return
        own = await self._unless_leaving(self._trainer.evaluate(None)) if own_too else None
        self._took_s, self._of = max(took, self._took_s / 2), of
        self._emit(
            events.Evaluated(
                round=round_,
                loss=result.loss,
                bits_per_byte=result.bits_per_byte,
                own_loss=math.nan if own is None else own.loss,
            )
        )

    async def _unless_leaving(self, call: Awaitable[T]) -> T | None:
        return await (call if self._leaving else self._leaving.race(call))

    # -- of the last state ---------------------------------------------------------------------------------------------

    def last_s(self) -> float:
        """Return the seconds that evaluating the last state will take; 0 when that is not going to happen."""
        return self._took_s if self._took_s <= LAST_MOST_S else 0.0

    def why(self) -> str:
        """Why the last state is going to be evaluated, or not, for a person."""
        if not self._took_s:
            return "not evaluated: no evaluation has ended here, so nobody knows how long one takes"
        if not self.last_s():
            return f"not evaluated: that takes {self._took_s:.0f} s here, and a leave gives it {LAST_MOST_S:.0f} s"
        return f"the last evaluation took {self._took_s:.1f} s"

    def last_limit_s(self) -> float:
        """Return the seconds after which the last evaluation is given up; 0: it is not to be begun."""
        known = bool(self.last_s()) and self._of != self._outer.begun
        return LEAST_S + 2 * self.last_s() if known else 0.0
