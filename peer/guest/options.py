"""The volunteer's options on when the trainer runs and how much of the machine it takes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from peer.aio.threads import BULK_NICE

TRAINER_NICE = 10
"""Niceness of a trainer with low priority."""


@dataclass(frozen=True, kw_only=True)
class GuestOptions:
    """The options. The defaults suit a machine for training only; `peer join` sets `low_priority`."""

    low_priority: bool = False
    """Whether the owner's programs have priority over the trainer."""
    cpu: float = 1.0
    """Share of the processor cores that the trainer may use, in (0, 1]."""
    gpu: float = 1.0
    """Share of the time that the trainer may use the GPU, in (0, 1]."""
    when: tuple[str, ...] = ()
    """Conditions that must hold for training: see `peer.guest.conditions`."""
    max_temperature: float | None = None
    """Degrees Celsius above which training pauses; None: no limit."""

    @property
    def bulk_nice(self) -> int:
        """Niceness of codecs and outer step, relative to the daemon. It exceeds the trainer's."""
        return BULK_NICE + (TRAINER_NICE if self.low_priority else 0)


def machine_cores() -> int:
    """Return the number of processor cores of this machine."""
    return os.cpu_count() or 2


def threads_for(share: float, asked: int | None, cores: int) -> int:
    """Return the number of threads for a trainer that may use this share of `cores`. `asked`: the volunteer's number;
    None: all cores but one."""
    most = asked or max(1, cores - 1)
    return min(most, max(1, math.ceil(round(share * cores, 6))))


def core_budget(share: float, threads: int, cores: int) -> float | None:
    """Return the processor seconds per second that a trainer with this many threads may use; None: it cannot exceed its
    share."""
    budget = share * cores
    return None if share >= 1 or budget >= threads else budget
