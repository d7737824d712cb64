"""A trainer process started before its run is known: torch takes seconds to load, which it does while the daemon loads
itself, looks for the run, and fetches the state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from peer.trainer.subprocess import TrainerSubprocess


@contextlib.asynccontextmanager
async def early_trainer(folder: Path, threads: int) -> AsyncIterator[TrainerSubprocess | None]:
    """The process, which ends with the context; None when it cannot be started: the trainer's proper start tells why.
    folder: must exist. The process's log lies there under a name of its own, for another daemon may hold this home,
    until the trainer's start renames it."""
    log = folder / f"trainer.{os.getpid()}.log"
    try:
        child = await TrainerSubprocess.spawn(log, threads)
    except OSError:
        yield None
        return
    try:
        yield child
    finally:
        await child.end()
        log.unlink(missing_ok=True)
