"""Windows of the corpus for training and evaluation.

They are functions of their arguments only, so that a peer that crashed or joined late draws the same windows as
otherwise."""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Windows = NDArray[np.uint8]


def draw(train: Windows, *, context: int, batch: int, seed: int, peer_id: str, round_: int, step: int) -> Windows:
    """Draw the windows of one inner step, [batch, context + 1] uint8, uniformly over the training bytes.

    The generator is seeded by a hash of (run seed, peer, round, step in the round)."""
    key = blake3(f"{seed}\0{peer_id}\0{round_}\0{step}".encode()).digest(16)
    random = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
    starts = random.integers(0, len(train) - context, size=batch)
    return _windows(train, starts, context)


def holdout_windows(holdout: Windows, *, context: int, count: int) -> Windows:
    """Return `count` evenly spaced windows of the hold-out, [count, context + 1] uint8, the same for every peer."""
    starts = np.linspace(0, len(holdout) - context - 1, count).astype(np.int64)
    return _windows(holdout, starts, context)


def _windows(data: Windows, starts: NDArray[np.int64], context: int) -> Windows:
    windows: Windows = data[starts[:, None] + np.arange(context + 1)]
    return windows
