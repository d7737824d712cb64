"""Trainer process started before its run is known.

Torch takes seconds to load. The process loads it while the daemon loads itself, looks for the run, and fetches the
state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from peer.trainer.subprocess import TrainerSubprocess


@contextlib.asynccontextmanager
async def early_trainer(folder: Path, threads: int) -> AsyncIterator[TrainerSubprocess | None]:
    """Start the process, which ends with the context; None when it cannot be started.

    The trainer's later start tells why. `folder` must exist. The log has a name of its own there, as another daemon may
    hold this home; the trainer's start renames it."""
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
