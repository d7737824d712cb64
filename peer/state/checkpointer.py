"""Writes checkpoints during training.

The trainer and the daemon write their parts at the same time; no outer step may change the daemon's part, the outer
state, meanwhile. Then training continues, while a thread completes the checkpoint (hash, sync, rename). A failure is
journaled, the former checkpoint stays, and training continues."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.aio.tasks import uninterrupted
from peer.aio.threads import Offload
from peer.errors import HomeUnusable, TrainerDied, file_advice
from peer.observe import events
from peer.observe.formatting import amount
from peer.outer.state import OuterState
from peer.ports.trainer import Trainer
from peer.protocol.messages import RunId
from peer.state.checkpoint import CheckpointError, CheckpointStore, checkpoint_bytes
from peer.state.save_pace import SavePace
from peer.state.sealed_state import OUTER


@dataclass(frozen=True, slots=True)
class _Draft:
    """A checkpoint whose two parts are written, but which is not complete yet."""

    folder: Path
    facts: dict[str, Any]
    began: float
    """Start of the save, by `time.monotonic`."""


class Checkpointer:
    """Writes checkpoints of one run at the given pace. The owner has to await `close`.

    `facts`: returns further facts that a checkpoint stores beside its round and token count. `offload`: runs work in a
    thread of normal priority, other than the threads of the exchanges. `emit`: journals an event."""

    def __init__(
        self,
        store: CheckpointStore,
        run_id: RunId,
        outer: OuterState,
        trainer: Trainer,
        offload: Offload,
        emit: Callable[[events.Event], None],
        pace: SavePace,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._outer = outer
        self._trainer = trainer
        self._offload = offload
        self._emit = emit
        self.pace = pace
        self._facts = facts
        self._completing: asyncio.Task[None] | None = None

    def try_disk(self) -> None:
        """Measure the disk with a small write. Blocks for up to a second. Call it before the first checkpoint."""
        self.pace.try_disk(self._store.folder)

    async def save_if_due(self, round_: int) -> None:
        """Begin a checkpoint if one is due, and return when training may continue.

        Call it between two rounds: no outer step may move the state meanwhile. The checkpoint is completed in the
        background."""
        if self.completing or not self.pace.due():
            return
        if (draft := await self._write_draft(round_)) is not None:
            self._completing = asyncio.create_task(self._complete(draft), name="checkpoint")

    @property
    def completing(self) -> bool:
        """Whether a checkpoint is being completed in the background."""
        return self._completing is not None and not self._completing.done()

    async def save_now(self, round_: int) -> None:
        """Write a checkpoint and wait until it is complete. Once both parts are written, cancellation waits too.

        A failure is journaled and not raised; the former checkpoint stays."""
        await self._wait_completed()
        if (draft := await self._write_draft(round_)) is not None:
            await uninterrupted(self._complete(draft))

    async def close(self) -> None:
        """Wait until the checkpoint that is being written is complete.

        Gives it up when that takes much longer than earlier ones. An incomplete checkpoint is never loaded later."""
        if self._completing is not None:
            await asyncio.wait({self._completing}, timeout=self.pace.limit_s())
            self._completing.cancel()
            await asyncio.wait({self._completing})

    async def _wait_completed(self) -> None:
        if self._completing is not None:
            await asyncio.wait({self._completing})

    async def _write_draft(self, round_: int) -> _Draft | None:
        """Write both parts into a draft folder. None: that failed, and the failure is journaled."""
        began = time.monotonic()
        self.pace.record_start(began)
        folder, limit_s = None, self.pace.trainer_limit_s()
        try:
            folder = await self._offload(self._store.begin)
            tokens = await self._write_both_parts(folder, limit_s)
        except TimeoutError:
            assert folder is not None
            await self._report_failure(folder, self.pace.timeout_reason(limit_s, _trainers_bytes(folder)))
            return None
        except (CheckpointError, TrainerDied, OSError) as error:
            await self._report_failure(folder, str(error))
            return None
        except asyncio.CancelledError:
            if folder is not None:
                self._store.abandon(folder)
            raise
        return _Draft(folder, {**self._facts(), "round": round_, "tokens": tokens}, began)

    async def _write_both_parts(self, folder: Path, limit_s: float) -> int:
        """Write both parts and return the trainer's token count. Raises TimeoutError when the trainer takes too long.

        Always waits for the thread that writes the outer state: it cannot be stopped, and the state must not move while
        it reads."""
        outer = self._outer
        writing = asyncio.ensure_future(
            self._offload(lambda: self._store.write_outer(folder, outer.params, outer.momentum))
        )
        try:
            async with asyncio.timeout(limit_s):
                tokens = await self._trainer.save(folder)
        finally:
            await asyncio.wait({writing})
            failure = writing.exception()
        if failure is not None:
            raise failure
        return tokens

    async def _complete(self, draft: _Draft) -> None:
        digest = self._outer.layout.digest()
        try:
            saved = await self._offload(lambda: self._store.complete(draft.folder, self._run_id, digest, draft.facts))
        except (CheckpointError, OSError) as error:
            await self._report_failure(draft.folder, str(error))
            return
        seconds = time.monotonic() - draft.began
        self.pace.record_write(draft.began, seconds, saved.nbytes)
        name, round_ = saved.folder.name, draft.facts["round"]
        self._emit(events.Checkpointed(round=round_, folder=name, seconds=seconds, bytes=saved.nbytes))

    async def _report_failure(self, folder: Path | None, reason: str) -> None:
        if folder is not None:
            await self._offload(lambda: self._store.abandon(folder))
        self._emit(events.CheckpointFailed(reason=reason))


def _trainers_bytes(draft: Path) -> int:
    """Return the bytes that the trainer has written into the draft. 0 if the folder cannot be read."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in draft.iterdir() if path.name != OUTER)
    return 0


def check_disk_room(store: CheckpointStore, elements: int) -> str:
    """Check that the disk has room for the checkpoints of a model of `elements` parameters.

    Returns the needed and the free space, for a person. Raises HomeUnusable when there is too little."""
    one = checkpoint_bytes(elements)
    needed = one * (store.keep + 1)  # one more, because the next checkpoint is written while the oldest still exists
    try:
        held, free = store.held_bytes(), _free_on(store.folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HomeUnusable(f"cannot look at {store.folder}: {reason}", file_advice(error, store.folder)) from error
    summary = (
        f"checkpoints: about {_size(one)} each, the last {store.keep} kept, at most {_size(needed)} in {store.folder}"
    )
    if held + free < needed:
        raise HomeUnusable(
            f"{summary}: only {_size(free)} are free there, and {_size(held)} are theirs already",
            f"Free {_size(needed - held - free)}, choose another --home, or keep fewer: --keep-checkpoints 1 "
            f"takes {_size(2 * one)}.",
        )
    return f"{summary}; {_size(free)} are free"


def _free_on(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _size(nbytes: int) -> str:
    return amount(nbytes, "bytes")
