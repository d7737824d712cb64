"""Shape of the inner learning rate over a run."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "linear", "wsd"]
"""Shape of the learning rate after the warm-up, see `schedule`."""


def schedule(
    progress: float, warmup: float, final: float, shape: Schedule = "cosine", decay_fraction: float = 0.2
) -> float:
    """Return the factor of the peak learning rate at `progress` in [0, 1] of the run.

    The factor rises linearly until `warmup`, and is `final` from 1 on. `cosine` (arXiv 1608.03983) and `linear`
    decrease all the way between. `wsd` (warmup-stable-decay, arXiv 2404.06395) stays at 1 until the last
    `decay_fraction` of the run, where it decreases as 1 - sqrt (arXiv 2405.18392)."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if warmup >= 1.0:
        return 1.0
    begin = max(warmup, 1.0 - decay_fraction) if shape == "wsd" else warmup
    if begin >= 1.0:
        return 1.0 if progress < 1.0 else final
    return final + (1.0 - final) * _left(shape, max(0.0, (progress - begin) / (1.0 - begin)))


def _left(shape: Schedule, fall: float) -> float:
    """Return which part of the decrease remains, from 1 to 0, when the fraction `fall` of its duration has passed."""
    match shape:
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * fall))
        case "linear":
            return 1.0 - fall
        case "wsd":
            return 1.0 - math.sqrt(fall)


def progress_of(begun: float, step: int, steps_per_slot: float | None, total: int) -> float:
    """Return the progress in [0, 1] of a run of `total` slots, `step` steps after the end of slot number `begun`.

    A slot is the shortest round (`peer.protocol.round_lengths`). `steps_per_slot` None: rounds are in seconds, and the
    present slot counts as half done."""
    within = 0.5 if steps_per_slot is None else step / steps_per_slot
    return min(1.0, (begun + within) / total)
