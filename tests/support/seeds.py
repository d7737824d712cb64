"""How many seeds a simulation plays: as few as show its fault, or all with `make seeds`."""

from __future__ import annotations

import os
from collections.abc import Sequence

EVERY_SEED = "EVERY_SEED"
"""Environment variable: set, and all seeds are played."""


def seeds(few: int | Sequence[int], all_seeds: int) -> Sequence[int]:
    """Return the seeds to play: `few` (how many, or which), or `range(all_seeds)` where `EVERY_SEED` is set."""
    if os.environ.get(EVERY_SEED):
        return range(all_seeds)
    return range(few) if isinstance(few, int) else few
