"""Local checkpoints while training: when one is due, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from peer.daemon.exchange import Offload
from peer.daemon.interfaces import Trainer
from peer.errors import TrainerDied
from peer.observe import events
from peer.outer.state import OuterState
from peer.protocol.messages import RunId
from peer.state.checkpoint import CheckpointError, CheckpointStore

SHARE = 0.02
"""Of the time, at most, goes into writing checkpoints: large models write them less often."""
TRAINER_S = 4.0
"""The trainer's part takes no longer, else there is no checkpoint this time."""


class Saving:
    """`facts` are written into each checkpoint, beside round and token count. `every_s`: at least between two."""

    def __init__(
        self,
        store: CheckpointStore,
        run_id: RunId,
        outer: OuterState,
        trainer: Trainer,
        offload: Offload,
        emit: Callable[[events.Event], None],
        every_s: float,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._outer = outer
        self._trainer = trainer
        self._offload = offload
        self._emit = emit
        self._every_s = every_s
        self._facts = facts
        self._due = 0.0  # the first one at the first boundary: a crash soon after still resumes

    async def maybe(self, round_: int) -> None:
        """Between rounds: write one if it is time to."""
        if time.monotonic() >= self._due:
            await self.write(round_)

    async def write(self, round_: int) -> None:
        """Write one; on failure the former stays, the journal says why, and training goes on."""
        began = time.monotonic()
        self._due = began + self._every_s
        folder = None
        try:
            folder = self._store.begin()
            async with asyncio.timeout(TRAINER_S):
                tokens = await self._trainer.save(folder)
            facts = {**self._facts(), "round": round_, "tokens": tokens}
            outer, digest = self._outer, self._outer.layout.digest()
            saved = await self._offload(
                lambda: self._store.commit(folder, outer.params, outer.momentum, self._run_id, digest, facts)
            )
        except (CheckpointError, TrainerDied, OSError) as error:  # a TimeoutError is an OSError
            if folder is not None:
                self._store.abandon(folder)
            self._emit(events.CheckpointFailed(reason=str(error) or "the trainer did not answer in time"))
            return
        seconds = time.monotonic() - began
        self._due = began + max(self._every_s, seconds / SHARE)
        self._emit(events.Checkpointed(round=round_, folder=saved.folder.name, seconds=seconds, bytes=saved.nbytes))
