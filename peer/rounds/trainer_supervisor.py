"""Restarts the trainer when it dies, and accounts for work that no outer step will include."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from peer.aio.events import Shutdown
from peer.errors import TrainerDied, TrainerFailed
from peer.joining.resume import JoinedState
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.trainer import Trainer

MAX_DEATHS = 5
"""The trainer is given up after this many deaths without a finished round between them."""


class TrainerSupervisor:
    """Restarts the trainer when it dies, and journals the work that is lost because no outer step will include it.

    `upto`: per fragment, the trainer's token count up to which the journal already accounts for the work."""

    def __init__(
        self,
        trainer: Trainer,
        outer: OuterState,
        emit: Callable[[events.Event], None],
        shutdown: Shutdown,
        upto: Mapping[int, int],
    ) -> None:
        self._trainer = trainer
        self._outer = outer
        self._emit = emit
        self._shutdown = shutdown
        self._upto = dict(upto)
        self._deaths = 0

    @property
    def elements(self) -> tuple[int, ...]:
        """Number of elements of each fragment."""
        layout = self._outer.layout
        return tuple(layout.fragment_elements(fragment) for fragment in range(len(layout.fragments)))

    def mark_journaled(self, fragment: int, processed: int) -> None:
        """Record that an event accounts for the fragment's work up to this token count."""
        self._upto[fragment] = processed

    def round_finished(self) -> None:
        """Reset the count of deaths: a round was finished."""
        self._deaths = 0

    async def revive(self, death: TrainerDied, round_: int) -> None:
        """Restart the trainer from `outer_params`. Its work since the last outer step is dropped and journaled.

        Raises TrainerFailed if it keeps dying. Returns without a running trainer if this peer has to leave
        meanwhile."""
        while True:
            self._deaths += 1
            self._emit(events.TrainerDeath(cause=death.cause))
            if self._deaths > MAX_DEATHS:
                raise TrainerFailed(
                    f"the trainer died {self._deaths} times in a row, at last of: {death.cause}",
                    "See trainer.log in the run's folder under --home. Too little memory is the usual cause.",
                )
            self.drop_outstanding(f"the trainer died: {death.cause}")
            if await self._shutdown.wait_for(min(30.0, 0.25 * 2**self._deaths)):
                return
            try:
                info = await self._trainer.start(self._outer.params, round_, None)
            except TrainerDied as again:
                death = again
                continue
            self._emit(events.TrainerStarted(device=info.device, reason=info.device_reason))
            return

    def all_based(self) -> bool:
        """Return whether every fragment's base counter covers the work that the journal accounts for. If not, a merge
        was lost after its outer step, and applied work would be counted twice."""
        base = enumerate(self._trainer.counters().base)
        return all(tokens >= self._upto.get(fragment, 0) for fragment, tokens in base)

    def resume_folder(self, state: JoinedState, *, eager: bool = False) -> Path | None:
        """Return the checkpoint's folder that the trainer can resume from; None: it starts from `outer_params`. Work
        that the checkpoint lacks is dropped and journaled.

        `eager`: the trainer's params are ahead of `outer_params` by an amount that no checkpoint holds, so all open
        work is dropped."""
        if eager:
            self.drop_outstanding("an eager peer that starts again begins from outer_params")
            return None
        if self._trainer.counters().tokens != state.checkpoint_tokens:
            self.drop_outstanding("lost with the process that did it")
        elif not self.all_based():
            self.drop_outstanding("lost between an outer step and its merge")
            return None
        return state.resume

    def covered(self) -> list[int]:
        """Return, for each fragment, the trainer's token count up to which the journal accounts for the work. A
        training loop that outlived its daemon continues from there."""
        return [self._upto.get(fragment, 0) for fragment in range(len(self._outer.layout.fragments))]

    def drop_outstanding(self, reason: str) -> None:
        """Journal as dropped all work that no outer step will include. The trainer's next start moves its base counters
        accordingly."""
        self._outer.ahead.clear()  # the trainer restarts from `outer_params`, not ahead of them
        counters = self._trainer.counters()
        for fragment, base in enumerate(counters.base):
            lost = counters.tokens - max(base, self._upto.get(fragment, 0))
            if lost > 0:
                dropped = lost * self._outer.layout.fragment_elements(fragment)
                self._emit(events.Dropped(fragment=fragment, dropped=dropped, upto=counters.tokens, reason=reason))
            self._upto[fragment] = counters.tokens
