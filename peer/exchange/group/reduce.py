"""Reduces the contributions to a shard to one result, in a worker thread and tile by tile. Memory: the mean, in the
caller's tensor, and the encoded result.

On failure: a contribution that cannot be decoded, is not finite or is absurdly large is left out and reported. One that
is only much larger than the others is scaled down (`peer.outer.robust_mean.factors`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.codec.plain import TILE, Codec
from peer.codes import Code
from peer.errors import BadPayload
from peer.exchange.group.contribution import Contribution, add_, tiles
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.radial import Weighed, radial_mean_
from peer.exchange.group.sparse_result import SparseResult
from peer.exchange.validation import check_contribution
from peer.outer.pages import pages
from peer.outer.robust_mean import factors
from peer.protocol.group.radial_mean import FEWEST
from peer.protocol.messages import PeerId
from peer.protocol.model.fragments import Span


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reduction."""

    named: tuple[PeerId, ...]
    """The contributors whose parts are in the mean."""
    payload: memoryview | None
    """The encoded mean; None: there is no result."""
    lacking: str
    """Why there is no result; empty if there is one."""
    bad: dict[PeerId, BadPayload]
    """The contributions that were left out, with the reasons."""


def reduce_contributions(
    parts: dict[PeerId, Contribution],
    terms: MeanTerms,
    into: Tensor,
    lacking: Callable[[Collection[PeerId]], str],
    genuine: Callable[[PeerId, Contribution], bool],
    tensors: Sequence[Span] = (),
    keep: Callable[[list[Contribution]], None] = lambda parts: None,
) -> Reduced:
    """Return the encoded weighted mean of `parts`, in their order. Our own part is treated as all others: the mean is
    of the encoded values.

    `into`: flat fp32 of the shard, used as working memory; undefined afterwards. `parts`: emptied while they are added
    up. `lacking`: returns why the given contributors are too few, or an empty string. `genuine`: returns whether this
    peer signed this contribution. `tensors`: spans of the shard whose mean is radial, ascending. `keep`: called with
    the parts that the mean will include, in their order.

    The weights depend only on the included parts, so anybody who has these parts computes the same mean."""
    codec, result_codec = terms.codec, terms.result_codec
    norms, bad = dict[PeerId, float](), dict[PeerId, BadPayload]()
    for peer in parts:
        try:
            length = _norm(parts[peer], codec, into.numel())
            if not genuine(peer, parts[peer]):
                raise BadPayload(Code.SIGNATURE, "the contribution is not signed by its sender")
            norms[peer] = length
        except BadPayload as error:
            bad[peer] = error
    while 0.0 in (shrink := _factors(norms, parts)).values():
        for far in [peer for peer, factor in shrink.items() if factor == 0.0]:
            bad[far] = BadPayload(Code.NORM, "a contribution absurdly larger than those of the others")
            del norms[far]
    named = tuple(peer for peer in parts if peer not in bad)
    if why := lacking(named):
        return Reduced(named, None, why, bad)
    keep([parts[peer] for peer in named])
    if isinstance(result_codec, SparseResult):
        payload = result_codec.make([(parts[peer], shrink[peer]) for peer in named], into)
        parts.clear()
        return Reduced(named, payload, "", bad)
    weights = terms.weigh([parts[peer].tokens for peer in named])
    if tensors and len(named) >= FEWEST:
        counted = zip(named, weights, strict=True)
        radial_mean_([Weighed(parts[peer], weight, shrink[peer]) for peer, weight in counted], codec, into, tensors)
    else:
        for number, (peer, weight) in enumerate(zip(named, weights, strict=True)):
            add_(parts.pop(peer), codec, into, weight * shrink[peer], first=number == 0)
    parts.clear()
    return Reduced(named, encoded(result_codec, into), "", bad)


def _factors(norms: dict[PeerId, float], parts: dict[PeerId, Contribution]) -> dict[PeerId, float]:
    if not norms:
        return {}
    found = factors(list(norms.values()), [parts[peer].tokens for peer in norms])
    return dict(zip(norms, found, strict=True))


def encoded(codec: Codec, values: Tensor) -> memoryview:
    """Encode flat fp32 values tile by tile."""
    payload, at = pages(codec.nbytes(values.numel())), 0
    for start in range(0, values.numel(), TILE):
        part = codec.encode(values[start : start + TILE])
        payload[at : at + len(part)] = part
        at += len(part)
    return payload


def _norm(part: Contribution, codec: Codec, elements: int) -> float:
    """Return the L2 norm of the decoded values. Raises BadPayload."""
    space, total = torch.empty(min(TILE, elements)), 0.0
    for span, payload in tiles(codec, part.payload, elements):
        values = space[: span.stop - span.start]
        codec.decode_into(payload, values)
        total += check_contribution(values)
    return math.sqrt(total)
