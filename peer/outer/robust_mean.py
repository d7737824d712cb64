"""The mean over a group, as the owner of a shard makes it once for everybody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Protocol

import torch
from torch import Tensor

LONG = 1.5
"""A contribution counts for so many times the median norm at most: a longer one is made that long (norm clipping: Sun
et al. 2019, arXiv 1911.07963). Those of equal work are equally long within a tenth or so; for what one member can spoil
see `benchmarks/liars.py`."""
HEAVY = 2.0
"""No contribution weighs more than so many times the median: tokens are its sender's word."""
FASTEST = 20.0
"""What a member claims beyond so many times the median excuses nothing: no machine is believed to be faster, in the
time that all members had."""
FEW, WIDE = 3, 10.0
"""Among so few it cannot be told who lies and who has a fast machine: both bounds are wide then."""
ABSURD = 100.0
"""So many times the median norm, and as many times more as its sender did more than the median (`FASTEST` at most), is
no honest work: it is refused. In its first ten steps an inner optimizer is slow, so ten times the steps can be a
hundred times the way."""

PIECE = 2**16
"""Elements whose doubles are in memory at a time: half a megabyte."""


class Sliced(Protocol):
    """Flat values that are read part by part; a tensor is one."""

    def numel(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tensor: ...


def norm(values: Sliced) -> float:
    """L2, in double precision; infinite or NaN when a value is. A temporary of `PIECE` at most."""
    return math.sqrt(square(values))


def square(values: Sliced) -> float:
    """Return the square of the L2 norm. It is the same to the bit on every machine: a member makes an owner's mean
    again, and compares. So the order of the additions is written down here, and left to no library."""
    total = 0.0
    for start in range(0, values.numel(), PIECE):
        part = values[slice(start, min(start + PIECE, values.numel()))].to(torch.float64, copy=True)
        part.mul_(part)
        while (count := part.numel()) > 1:
            half = count // 2
            part[:half].add_(part[count - half :])
            part = part[: count - half]
        total += float(part[0])
    return total


def fractions(tokens: Sequence[int]) -> list[float]:
    """Return the weight of each contribution: w_i / sum(w_i), w_i = tokens_i, but HEAVY times the median at most."""
    heaviest = (HEAVY if len(tokens) > FEW else WIDE) * median_low(tokens)
    weights = [min(float(count), heaviest) for count in tokens]
    total = sum(weights)
    return [weight / total for weight in weights]


def equal_fractions(tokens: Sequence[int]) -> list[float]:
    """Return the weight of each contribution where all count alike: FedFix (arXiv 2206.10189) finds the optimum of the
    objective in which each member is as important as it weighs on average."""
    return [1.0 / len(tokens)] * len(tokens)


Weigh = Callable[[Sequence[int]], list[float]]
"""Maps the tokens of the contributions to their weights, which add up to 1."""
WEIGHTS: dict[str, Weigh] = {"tokens": fractions, "equal": equal_fractions}
"""The rules of weights, each under its name in a manifest."""


def factors(norms: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return the factor of each contribution: 1; less when it is longer than LONG times the (lower) median norm; 0
    when it is to be refused. All 1 when the median is zero. `tokens`: what their senders say."""
    usual, work = median_low(norms), max(1.0, median_low(tokens))
    most, found = (LONG if len(norms) > FEW else WIDE) * usual, []
    for norm_, count in zip(norms, tokens, strict=True):
        absurd = 0 < ABSURD * usual * min(FASTEST, max(1.0, count / work)) < norm_
        found.append(0.0 if absurd else most / norm_ if 0 < most < norm_ else 1.0)
    return found


def weighted_mean(values: Sequence[Tensor], tokens: Sequence[int], weigh: Weigh = fractions) -> Tensor:
    """The sum of x_i times its fraction and its factor in fp32, product and sum rounded one by one, in the order given.
    The tensors are flat fp32 of one length, none to be refused, and are overwritten; the first of them is returned. (An
    owner makes the same part by part: `peer.exchange.group.reduce`.)"""
    assert len(values) == len(tokens) > 0
    shrink = factors([norm(one) for one in values], tokens)
    weights = [fraction * factor for fraction, factor in zip(weigh(tokens), shrink, strict=True)]
    mean = values[0].mul_(weights[0])
    for part, weight in zip(values[1:], weights[1:], strict=True):
        mean.add_(part.mul_(weight))
    return mean
