"""Lowers the priority of the trainer, so that the owner's programs go first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from peer.guest.options import TRAINER_NICE


def lower_priority() -> str:
    """Lower the priority of this process, its threads and later children, for processor and disk. Return a description
    of what was done.

    Call it after all imports: on a busy machine a process of low priority would take minutes for them."""
    done = []
    try:
        for thread in _threads():
            os.setpriority(os.PRIO_PROCESS, thread, max(TRAINER_NICE, os.getpriority(os.PRIO_PROCESS, thread)))
        done.append(f"nice {os.getpriority(os.PRIO_PROCESS, 0)}")
    except OSError as error:
        done.append(f"no lower priority: {error.strerror}")
    if sys.platform == "linux":
        try:
            for thread in _threads():
                psutil.Process(thread).ionice(psutil.IOPRIO_CLASS_IDLE)
            done.append("the disk only when it is idle")
        except (OSError, psutil.Error) as error:
            done.append(f"no lower priority for the disk: {error}")
    return ", ".join(done)


def _threads() -> list[int]:
    """Return the ids whose priorities make up this process's priority. On Linux each thread has its own."""
    if sys.platform != "linux":
        return [0]
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]
