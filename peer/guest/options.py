"""The choices of a volunteer whose machine the trainer is a guest on."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from peer.aio.threads import BULK_NICE

TRAINER_NICE = 10
"""Niceness of a trainer at low priority."""


@dataclass(frozen=True, kw_only=True)
class GuestOptions:
    """The choices. The defaults are a laboratory's; `peer join` begins at low priority."""

    low_priority: bool = False
    """Whether the trainer gives way to the owner's programs."""
    cpu: float = 1.0
    """Share of the machine's processor cores that the trainer may use, in (0, 1]."""
    gpu: float = 1.0
    """Share of the time that the trainer may use the GPU, in (0, 1]."""
    when: tuple[str, ...] = ()
    """Conditions without which nothing is trained: see `peer.guest.conditions`."""
    max_temperature: float | None = None
    """Degrees Celsius; None: no limit."""

    @property
    def bulk_nice(self) -> int:
        """Niceness that codec and outer step have more than the daemon: they stay below the trainer."""
        return BULK_NICE + (TRAINER_NICE if self.low_priority else 0)


def machine_cores() -> int:
    """Return how many processor cores this machine has."""
    return os.cpu_count() or 2


def threads_for(share: float, asked: int | None, cores: int) -> int:
    """Return the threads of a trainer that may use this share of `cores`. None asked: all cores but one."""
    most = asked or max(1, cores - 1)
    return min(most, max(1, math.ceil(round(share * cores, 6))))


def core_budget(share: float, threads: int, cores: int) -> float | None:
    """Return the processor seconds that a trainer of so many threads may use a second. None: it cannot use more."""
    budget = share * cores
    return None if share >= 1 or budget >= threads else budget
