"""Starts the trainer process before the run is known.

Loading torch takes seconds. The process does so while the daemon imports its own modules, looks for the run and fetches
the state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from peer.trainer.subprocess import TrainerSubprocess


@contextlib.asynccontextmanager
async def early_trainer(folder: Path, threads: int) -> AsyncIterator[TrainerSubprocess | None]:
    """Start a trainer process that ends with the context. Yields None when it cannot be started.

    The regular start of the trainer then reports the cause. `folder` must exist. The log's name contains our process
    id, because another daemon may use this home; `TrainerSubprocess.begin` renames it."""
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
