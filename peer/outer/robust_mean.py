"""Weighted mean of a group's contributions, robust against members that send vectors of excessive length or claim too
many tokens. The owner of a shard computes it for all members."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Protocol

import torch
from torch import Tensor

LONG = 1.5
"""A contribution longer than `LONG` times the median norm is scaled down to that length (norm clipping: Sun et al.
2019, arXiv 1911.07963). Contributions of equal work differ in length by about a tenth. `benchmarks/liars.py` measures
what one member can spoil."""
HEAVY = 2.0
"""Maximum weight of a contribution, as a multiple of the median token count. It is limited because the senders may
claim any count."""
FASTEST = 20.0
"""Largest factor by which a member's tokens may exceed the median and still justify a longer contribution (`ABSURD`).
No machine is assumed to be faster than that."""
FEW, WIDE = 3, 10.0
"""Among up to `FEW` contributions, a liar cannot be distinguished from a fast machine. `LONG` and `HEAVY` are then both
replaced by `WIDE`."""
ABSURD = 100.0
"""A contribution is refused if it is longer than this times the median norm, times the ratio of its tokens to the
median (`FASTEST` at most). In its first ten steps an inner optimizer is slow, so ten times the steps can give a hundred
times the length."""

PIECE = 2**16
"""Elements that are converted to double at a time: half a megabyte."""


class Sliced(Protocol):
    """Flat values that are read slice by slice, such as a tensor."""

    def numel(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tensor: ...


def norm(values: Sliced) -> float:
    """Return the L2 norm in double precision; infinite or NaN if a value is. Temporaries have at most `PIECE`
    elements."""
    return math.sqrt(square(values))


def square(values: Sliced) -> float:
    """Return the square of the L2 norm, the same to the bit on every machine.

    Members recompute an owner's mean and compare it. So the order of the additions is fixed here and not left to a
    library."""
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
    """Return the weight of each contribution: w_i / sum(w_i), where w_i = min(tokens_i, HEAVY * median tokens). Among
    up to `FEW` contributions, `WIDE` replaces `HEAVY`."""
    heaviest = (HEAVY if len(tokens) > FEW else WIDE) * median_low(tokens)
    weights = [min(float(count), heaviest) for count in tokens]
    total = sum(weights)
    return [weight / total for weight in weights]


def equal_fractions(tokens: Sequence[int]) -> list[float]:
    """Return the same weight for each contribution. FedFix (arXiv 2206.10189): the optimum is then that of the
    objective in which each member is as important as its average weight."""
    return [1.0 / len(tokens)] * len(tokens)


Weigh = Callable[[Sequence[int]], list[float]]
"""Maps the tokens of the contributions to their weights, which sum to 1."""
WEIGHTS: dict[str, Weigh] = {"tokens": fractions, "equal": equal_fractions}
"""Weighting rules by their name in a manifest."""


def factors(norms: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return the factor of each contribution: 1, less for one longer than `LONG` times the lower median norm (`WIDE`
    times among up to `FEW`), and 0 for one that has to be refused (`ABSURD`).

    All factors are 1 if the median is zero. `tokens`: counts as the senders claim them."""
    usual, work = median_low(norms), max(1.0, median_low(tokens))
    most, found = (LONG if len(norms) > FEW else WIDE) * usual, []
    for norm_, count in zip(norms, tokens, strict=True):
        absurd = 0 < ABSURD * usual * min(FASTEST, max(1.0, count / work)) < norm_
        found.append(0.0 if absurd else most / norm_ if 0 < most < norm_ else 1.0)
    return found


def weighted_mean(values: Sequence[Tensor], tokens: Sequence[int], weigh: Weigh = fractions) -> Tensor:
    """Return the sum of x_i times its weight and its factor, in fp32. Products and sums are rounded one by one, in the
    given order.

    The tensors are flat fp32 of equal length; the caller has removed those that `factors` refuses. They are
    overwritten, and the first one is returned. (`peer.exchange.group.reduce` computes the same part by part.)"""
    assert len(values) == len(tokens) > 0
    shrink = factors([norm(one) for one in values], tokens)
    weights = [fraction * factor for fraction, factor in zip(weigh(tokens), shrink, strict=True)]
    mean = values[0].mul_(weights[0])
    for part, weight in zip(values[1:], weights[1:], strict=True):
        mean.add_(part.mul_(weight))
    return mean
