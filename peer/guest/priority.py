"""The priority of a trainer that gives way to the owner's programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from peer.guest.options import TRAINER_NICE


def lower_priority() -> str:
    """Lower the priority of this process, of its threads and of what they start. Return what was done, for a person.

    Call it when all is imported: a busy machine hardly serves a nice process, and imports would take minutes."""
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
    """Return the ids that together name this process: on Linux each thread has a priority of its own."""
    if sys.platform != "linux":
        return [0]
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]
