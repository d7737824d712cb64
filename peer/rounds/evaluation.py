"""Evaluates `outer_params` through the trainer. Remembers how long an evaluation takes, and which state was evaluated
last."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from peer.aio.events import Shutdown
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.clock import Clock
from peer.ports.trainer import Trainer
from peer.rounds.status import RoundStatus

LAST_MOST_S = 15.0
"""A peer that leaves evaluates its last state only if that takes at most this many seconds."""
LEAST_S = 2.0
"""The last evaluation is given up after twice its expected seconds and this many more."""


class Evaluations:
    """Has the trainer evaluate `outer_params`, and journals the result. `still`: context in which `outer_params` do not
    move."""

    def __init__(
        self,
        trainer: Trainer,
        outer: OuterState,
        clock: Clock,
        still: AbstractAsyncContextManager[None],
        round_status: RoundStatus,
        shutdown: Shutdown,
        emit: Callable[[events.Event], None],
    ) -> None:
        self._trainer = trainer
        self._outer = outer
        self._clock = clock
        self._still = still
        self._round_status = round_status
        self._shutdown = shutdown
        self._emit = emit
        self._took_s = 0.0
        """Expected duration of an evaluation in seconds: the last duration, or half of the former value if that is
        longer. 0 before the first evaluation."""
        self._of = -1
        """Number of the state that was evaluated last (`OuterState.begun`); -1 before the first one."""

    async def evaluate(self, round_: int, own_too: bool = False, at_last: bool = False) -> None:
        """Evaluate, and journal the result. A request to leave cancels it, unless it is `at_last`. Raises TrainerDied.

        `own_too`: evaluate the trainer's params as well."""
        if self._shutdown and not at_last:
            return
        self._round_status.set_phase("evaluating")
        async with self._still:
            began, of = self._clock.now(), self._outer.begun
            call = self._trainer.evaluate(self._outer.params)
            result = await (call if at_last else self._shutdown.race(call))
            took = self._clock.now() - began
        if result is None:
            return
        own = await self._shutdown.race(self._trainer.evaluate(None)) if own_too else None
        self._took_s, self._of = max(took, self._took_s / 2), of
        self._emit(
            events.Evaluated(
                round=round_,
                loss=result.loss,
                bits_per_byte=result.bits_per_byte,
                own_loss=math.nan if own is None else own.loss,
            )
        )

    # -- the last state ----------------------------------------------------------------------------------------------

    @property
    def current(self) -> bool:
        """Whether the present state was evaluated."""
        return self._of == self._outer.begun

    def last_s(self, moving: bool) -> float:
        """Return the seconds that evaluating the last state will take; 0 if it will not be evaluated.

        `moving`: an exchange under way will move the state once more."""
        needed = moving or not self.current
        return self._took_s if needed and self._took_s <= LAST_MOST_S else 0.0

    def reason(self, moving: bool) -> str:
        """Return why the last state will be evaluated or not, as text for a person."""
        if self.current and not moving:
            return "the last state is evaluated already"
        if not self._took_s:
            return "not evaluated: no evaluation has ended here, so nobody knows how long one takes"
        if self._took_s > LAST_MOST_S:
            return f"not evaluated: that takes {self._took_s:.0f} s here, and a leave gives it {LAST_MOST_S:.0f} s"
        return f"the last evaluation took {self._took_s:.1f} s"

    def last_limit_s(self) -> float:
        """Return the seconds after which the last evaluation is cancelled; 0: do not begin it."""
        seconds = self.last_s(moving=False)
        return LEAST_S + 2 * seconds if seconds else 0.0
