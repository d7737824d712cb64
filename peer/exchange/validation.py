"""Check what a partner sent: finite values, no absurd distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peer.codec.stream import Flat
from peer.errors import BadPayload
from peer.outer.rules import all_finite, blocks

FAR = 10.0


FAR_FROM_ZERO = 0.25
"""A partner's params may differ from ours, in root mean square over the fragment, by FAR times ours and this much more
(a fragment may be near zero yet). Replicas of one run stay within about once their norm, so no honest partner comes
near; one that exploded, or lies, is not mixed in. What is below can still do harm, but bounded harm."""


BLOCK = 2**20


def check_values(values: Tensor, own: Flat) -> None:
    """Whether a partner's params may be mixed in. Raises BadPayload."""
    if not finite(values):
        raise BadPayload("not_finite", "the partner's params hold NaN or infinity")
    apart, limit = rms(values, own), FAR * rms(own) + FAR_FROM_ZERO
    if apart > limit:
        reason = f"the partner's params are {apart:.3g} from ours (rms); at most {limit:.3g} is taken"
        raise BadPayload("norm", reason)


def rms(one: Flat, other: Flat | None = None) -> float:
    """Root mean square of flat fp32 values, or of the difference of two; in blocks, so that no large temporary is
    made. Infinite when a square overflows."""
    total = 0.0
    for start in range(0, one.numel(), BLOCK):
        part = slice(start, min(start + BLOCK, one.numel()))
        block = one[part]
        if other is not None:
            block = block - other[part]
        total += float(torch.dot(block, block))
    return math.sqrt(total / max(one.numel(), 1))


def finite(values: Flat) -> bool:
    """Whether no value is NaN or infinite; a temporary of a block at most."""
    return all(all_finite(values[part]) for part in blocks(values.numel()))
