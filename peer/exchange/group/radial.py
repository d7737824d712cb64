"""The radial-directional mean of contributions, computed tile by tile; `peer.protocol.group.radial_mean` has the
equation. Extra memory: one tile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.codec.plain import TILE, Codec
from peer.exchange.group.contribution import Contribution, tiles
from peer.outer.robust_mean import norm, square
from peer.protocol.group.radial_mean import direction, stretch
from peer.protocol.model.fragments import Span


@dataclass(frozen=True, slots=True)
class Weighed:
    """A contribution to a radial mean, with its weight."""

    part: Contribution
    weight: float
    """The weights of all contributions add up to 1."""
    factor: float
    """Scale of the contribution: 1, or less if it is too long."""


def radial_mean_(parts: Sequence[Weighed], codec: Codec, into: Tensor, tensors: Sequence[Span]) -> None:
    """Write the mean of `parts` into flat fp32 `into`: the radial mean in the spans `tensors` (ascending), the weighted
    mean elsewhere. Where directions cancel each other, the radial mean is undefined and the weighted mean is computed
    instead."""
    weights, plain = [part.weight for part in parts], [part.weight * part.factor for part in parts]
    lengths = [_lengths(part.part, codec, into.numel(), tensors) for part in parts]
    gaps = _between(tensors, into.numel())
    rows = []
    for weight, scaled, own in zip(weights, plain, lengths, strict=True):
        rows.append([*(direction(weight, length) for length in own), *[scaled] * len(gaps)])
    _add_up_(parts, codec, into, [*tensors, *gaps], rows)
    cancelled = list[Span]()
    for number, (start, end) in enumerate(tensors):
        counted = [part.factor * own[number] for part, own in zip(parts, lengths, strict=True)]
        if (factor := stretch(weights, counted, norm(into[start:end]))) is None:
            cancelled.append((start, end))
        else:
            into[start:end].mul_(factor)
    _add_up_(parts, codec, into, cancelled, [[scaled] * len(cancelled) for scaled in plain])


def _between(tensors: Sequence[Span], elements: int) -> list[Span]:
    """Return the spans that no tensor covers."""
    begins = [0, *(end for _, end in tensors)]
    ends = [*(start for start, _ in tensors), elements]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]


def _lengths(part: Contribution, codec: Codec, elements: int, tensors: Sequence[Span]) -> list[float]:
    """Return the L2 norm of a contribution in each tensor."""
    found = [0.0] * len(tensors)
    for number, _, values in _decoded(part, codec, elements, tensors):
        found[number] += square(values)
    return [math.sqrt(total) for total in found]


def _add_up_(
    parts: Sequence[Weighed], codec: Codec, into: Tensor, spans: Sequence[Span], rows: Sequence[Sequence[float]]
) -> None:
    """Write the weighted sum of the parts into these spans; `rows` has a weight for each part and span. Other elements
    are not changed."""
    for start, end in spans:
        into[start:end].zero_()
    for part, row in zip(parts, rows, strict=True):
        for number, place, values in _decoded(part.part, codec, into.numel(), spans):
            into[place].add_(values.mul_(row[number]))


def _decoded(
    part: Contribution, codec: Codec, elements: int, spans: Sequence[Span]
) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield a contribution's values in these spans: the span's number, the slice of the shard, and the values, which
    the caller may change."""
    space = torch.empty(min(TILE, elements))
    for tile, payload in tiles(codec, part.payload, elements):
        within = [(number, max(start, tile.start), min(end, tile.stop)) for number, (start, end) in enumerate(spans)]
        within = [(number, start, end) for number, start, end in within if start < end]
        if within:
            codec.decode_into(payload, space[: tile.stop - tile.start])
        for number, start, end in within:
            yield number, slice(start, end), space[start - tile.start : end - tile.start]
