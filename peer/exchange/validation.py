"""Check the values that other peers send: finite, and no absurd distance or length."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peer.codec.stream import Flat
from peer.codes import Code
from peer.errors import BadPayload
from peer.outer.arithmetic import all_finite, blocks
from peer.outer.robust_mean import PIECE, norm, square
from peer.protocol.group.plausibility import MeasuredResult

FAR = 10.0
FAR_FROM_ZERO = 0.25
"""A partner's params may differ from ours, in root mean square over the fragment, by FAR times ours and this much more
(a fragment may be near zero yet). Replicas of one run stay within about once their norm, so no honest partner comes
near; one that exploded, or lies, is not mixed in. A smaller distance can still do harm, but bounded harm."""

RESULT_FAR = 100.0
"""A shard's result so many times longer than our own contribution is not applied, unless that was small for an honest
reason: a slow machine in its first steps."""
USUAL_FAR = 10.0
"""A long result may then be so many times what was applied in the round before, or OUTER_PART of the outer params."""
OUTER_PART = 0.1

BLOCK = 2**20
"""Elements of a temporary."""


def check_partner(values: Tensor, own: Flat) -> None:
    """Check that a partner's params may be mixed in. Raises BadPayload."""
    if not finite(values):
        raise BadPayload(Code.NOT_FINITE, "the partner's params hold NaN or infinity")
    apart, limit = rms(values, own), FAR * rms(own) + FAR_FROM_ZERO
    if apart > limit:
        reason = f"the partner's params are {apart:.3g} from ours (rms); at most {limit:.3g} is taken"
        raise BadPayload(Code.NORM, reason)


def check_contribution(values: Tensor) -> float:
    """Return the square of the L2 norm of a contribution, or of a part of one. Raises BadPayload where it is not
    finite."""
    if not finite(values):
        raise BadPayload(Code.NOT_FINITE, "a contribution holds NaN or infinity")
    return square(values)


def check_result(values: Tensor, own: Flat, outer: Flat | None, usual: float | None) -> MeasuredResult:
    """Return a shard's result beside our contribution. Raises BadPayload where it may not be applied, whoever else
    takes part.

    `own`: our contribution. `outer`: the outer params of the shard, where they are at hand. `usual`: root mean square
    of the result in the fragment's round before; in our first round a result may be as long as the outer params."""
    if not finite(values):
        raise BadPayload(Code.NOT_FINITE, "the result holds NaN or infinity")
    length, mine, together = compare(values, own)
    if 0 < RESULT_FAR * mine < length:
        most = 0.0 if outer is None else norm(outer)
        if usual is not None:
            most = max(USUAL_FAR * usual * math.sqrt(values.numel()), OUTER_PART * most)
        if most < length:
            raise BadPayload(Code.NORM, "the result is many times larger than our own contribution")
    root = math.sqrt(values.numel())
    both = length * mine
    return MeasuredResult(length / root, mine / root, together / both if both else 0.0, values.numel())


def compare(values: Tensor, own: Flat) -> tuple[float, float, float]:
    """Return the L2 norms of two vectors, and their inner product, in double precision. Reads each once, with
    temporaries of `PIECE`."""
    squares, own_squares, products = [], [], []
    for start in range(0, values.numel(), PIECE):
        part = slice(start, min(start + PIECE, values.numel()))
        one, other = values[part].double(), own[part].double()
        squares.append(float(torch.dot(one, one)))
        own_squares.append(float(torch.dot(other, other)))
        products.append(float(torch.dot(one, other)))
    return math.sqrt(math.fsum(squares)), math.sqrt(math.fsum(own_squares)), math.fsum(products)


def rms(one: Flat, other: Flat | None = None) -> float:
    """Return the root mean square of flat fp32 values, or of the difference of two. Infinite when a square overflows.
    A temporary of a block at most."""
    total = 0.0
    for start in range(0, one.numel(), BLOCK):
        part = slice(start, min(start + BLOCK, one.numel()))
        block = one[part]
        if other is not None:
            block = block - other[part]
        total += float(torch.dot(block, block))
    return math.sqrt(total / max(one.numel(), 1))


def finite(values: Flat) -> bool:
    """Return whether no value is NaN or infinite. A temporary of a block at most."""
    return all(all_finite(values[part]) for part in blocks(values.numel()))
