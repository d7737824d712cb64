"""Checks of values that other peers send: they must be finite and not absurdly far or large."""

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
"""A partner's params may differ from ours, in root mean square over the fragment, by at most FAR times the root mean
square of ours, plus this constant for fragments that are still near zero. Replicas of one run differ by about their own
norm at most, so honest partners pass. Params that exploded, or a crude lie, are refused. Smaller differences can do
harm too, but bounded harm."""

RESULT_FAR = 100.0
"""A shard's result that is this many times longer than our own contribution is refused, unless ours is small for an
honest reason, such as a slow machine in its first steps; see USUAL_FAR."""
USUAL_FAR = 10.0
"""A long result is accepted if it is at most this many times as long as the result of the round before, or OUTER_PART
of the outer params."""
OUTER_PART = 0.1

BLOCK = 2**20
"""Elements of a temporary tensor."""


def check_partner(values: Tensor, own: Flat) -> None:
    """Check that a partner's params may be mixed in. Raises BadPayload."""
    if not finite(values):
        raise BadPayload(Code.NOT_FINITE, "the partner's params hold NaN or infinity")
    apart, limit = rms(values, own), FAR * rms(own) + FAR_FROM_ZERO
    if apart > limit:
        reason = f"the partner's params are {apart:.3g} from ours (rms); at most {limit:.3g} is taken"
        raise BadPayload(Code.NORM, reason)


def check_contribution(values: Tensor) -> float:
    """Return the square of the L2 norm of a contribution, or of a part of one. Raises BadPayload if a value is not
    finite."""
    if not finite(values):
        raise BadPayload(Code.NOT_FINITE, "a contribution holds NaN or infinity")
    return square(values)


def check_result(values: Tensor, own: Flat, outer: Flat | None, usual: float | None) -> MeasuredResult:
    """Compare a shard's result with our own contribution. Raises BadPayload if the result must not be applied.

    `own`: our contribution. `outer`: the outer params of the shard; None: not available. `usual`: root mean square of
    the result in the fragment's round before; None in our first round, in which a result may be as long as the outer
    params."""
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
    """Return the L2 norms of two vectors and their inner product, in double precision. Reads each vector once, in
    pieces of `PIECE` elements."""
    squares, own_squares, products = [], [], []
    for start in range(0, values.numel(), PIECE):
        part = slice(start, min(start + PIECE, values.numel()))
        one, other = values[part].double(), own[part].double()
        squares.append(float(torch.dot(one, one)))
        own_squares.append(float(torch.dot(other, other)))
        products.append(float(torch.dot(one, other)))
    return math.sqrt(math.fsum(squares)), math.sqrt(math.fsum(own_squares)), math.fsum(products)


def rms(one: Flat, other: Flat | None = None) -> float:
    """Return the root mean square of flat fp32 values, or of the difference of two vectors. Infinite if a square
    overflows. Uses one temporary block at a time."""
    total = 0.0
    for start in range(0, one.numel(), BLOCK):
        part = slice(start, min(start + BLOCK, one.numel()))
        block = one[part]
        if other is not None:
            block = block - other[part]
        total += float(torch.dot(block, block))
    return math.sqrt(total / max(one.numel(), 1))


def finite(values: Flat) -> bool:
    """Return whether no value is NaN or infinite. Uses one temporary block at a time."""
    return all(all_finite(values[part]) for part in blocks(values.numel()))
