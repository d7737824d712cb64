"""Compares the contributions to a shard with each other, in a worker thread, for
`peer.protocol.group.contributor_judge`.

Of a large shard only a sample is compared, which bounds the time. The owner draws it at random, so that no contributor
can know which elements are compared. Memory: `PIECE` doubles for each contribution, and one tile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median_low

import torch

from peer.codec.plain import TILE, Codec
from peer.errors import BadPayload
from peer.exchange.group.contribution import Contribution
from peer.outer.robust_mean import FASTEST
from peer.protocol.group.contributor_judge import PartsComparison
from peer.protocol.messages import PeerId

PIECE = 2**15
"""Elements of each sampled tile that are compared."""
PIECES = 16
"""Most tiles in a sample."""


def compare_parts(parts: Mapping[PeerId, Contribution], codec: Codec, elements: int, random: Random) -> PartsComparison:
    """Return the comparison of these contributions to a shard of `elements` elements. It leaves out contributions that
    cannot be decoded, are not finite, or are zero."""
    readable, count = dict.fromkeys(parts, True), len(parts)
    products, squares = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, count, dtype=torch.float64)
    space, starts = torch.empty(min(TILE, elements)), range(0, elements, TILE)
    for start in starts if len(starts) <= PIECES else random.sample(starts, PIECES):
        tile = min(TILE, elements - start)
        size = min(PIECE, tile)
        at = random.randrange(tile - size + 1)
        rows = torch.zeros(count, size, dtype=torch.float64)
        for number, (peer, part) in enumerate(parts.items()):
            raw = part.payload.read(start // TILE * codec.nbytes(TILE), codec.nbytes(tile))
            try:
                codec.decode_into(raw, space[:tile])
            except BadPayload:
                readable[peer] = False
            rows[number] = space[at : at + size]
        products += rows @ rows.T
        rows.mul_(rows)
        squares += rows @ rows.T
    lengths = products.diagonal().sqrt()
    kept = [n for n, fit in enumerate(readable.values()) if fit and 0 < float(lengths[n]) < math.inf]
    scale = lengths[kept].outer(lengths[kept])
    peers = [list(parts)[number] for number in kept]
    return PartsComparison(
        tuple(peers),
        (products[kept][:, kept] / scale).tolist(),
        (squares[kept][:, kept].sqrt() / scale).tolist(),
        _excess(lengths[kept].tolist(), [parts[peer].tokens for peer in peers]),
    )


def _excess(lengths: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return for each contribution how many times longer than the median it is, divided by how many times more tokens
    than the median it has (at least 1, at most FASTEST)."""
    if not lengths:
        return []
    usual, work = median_low(lengths), median_low(tokens)
    return [
        length / usual / min(FASTEST, max(1.0, count / work)) for length, count in zip(lengths, tokens, strict=True)
    ]
