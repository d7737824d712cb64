"""Measures and shortens the difference between our values and a partner's, in a worker thread. Uses one temporary block
at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peer.codec.stream import Flat
from peer.outer.arithmetic import blocks


def distance(one: Flat, other: Flat) -> float:
    """Return the L2 norm of the difference of two flat fp32 vectors, summed in double precision."""
    total = 0.0
    for part in blocks(one.numel()):
        apart = (one[part] - other[part]).double()
        total += float(torch.dot(apart, apart))
    return math.sqrt(total)


def shorten(values: Tensor, own: Flat, taken: float) -> None:
    """Move `values` towards `own`, in place: values <- own + taken * (values - own). With `taken` 1 no bit changes."""
    assert 0 <= taken <= 1, taken
    if taken == 1:
        return
    for part in blocks(values.numel()):
        mine = own[part]
        values[part].sub_(mine).mul_(taken).add_(mine)
