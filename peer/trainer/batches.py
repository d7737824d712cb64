"""Which windows of the corpus are trained on and evaluated: functions of their arguments only, so that a peer that
crashed or joined late draws what it would have drawn anyway."""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Windows = NDArray[np.uint8]


def draw(train: Windows, *, context: int, batch: int, seed: int, peer_id: str, round_: int, step: int) -> Windows:
    """The windows of one inner step, [batch, context + 1] uint8, from starts drawn uniformly over the training bytes.

    The generator is seeded by a hash of (run seed, peer, round, step in the round)."""
    key = blake3(f"{seed}\0{peer_id}\0{round_}\0{step}".encode()).digest(16)
    random = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
    starts = random.integers(0, len(train) - context, size=batch)
    return _windows(train, starts, context)


def holdout_windows(holdout: Windows, *, context: int, count: int) -> Windows:
    """`count` evenly spaced windows over the whole hold-out, [count, context + 1] uint8: the same for everyone."""
    starts = np.linspace(0, len(holdout) - context - 1, count).astype(np.int64)
    return _windows(holdout, starts, context)


def _windows(data: Windows, starts: NDArray[np.int64], context: int) -> Windows:
    windows: Windows = data[starts[:, None] + np.arange(context + 1)]
    return windows
