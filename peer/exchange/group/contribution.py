"""A member's contribution to a shard: reading, adding and signing it tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3
from torch import Tensor

from peer.codec.plain import TILE, Codec
from peer.protocol.group.receipts import part_statement
from peer.protocol.wire.payload import Source


@dataclass(frozen=True, slots=True)
class Contribution:
    """A complete contribution in its encoded form."""

    tokens: int
    payload: Source
    signature: bytes = b""
    """The sender's signature of `statement_of`."""


def tiles(codec: Codec, payload: Source, elements: int) -> Iterator[tuple[slice, bytes]]:
    """Yield a payload of `elements` elements in separately encoded parts: the elements that a part holds, and its
    bytes."""
    for start in range(0, elements, TILE):
        part = slice(start, min(start + TILE, elements))
        yield part, payload.read(start // TILE * codec.nbytes(TILE), codec.nbytes(part.stop - start))


def add_(part: Contribution, codec: Codec, into: Tensor, weight: float, *, first: bool) -> None:
    """Add the decoded contribution times `weight` to `into`, or overwrite `into` if `first`. The sum is bit for bit
    that of `peer.outer.robust_mean.weighted_mean`."""
    for span, payload in tiles(codec, part.payload, into.numel()):
        if first:
            codec.decode_into(payload, into[span])
            into[span].mul_(weight)
        else:
            codec.add(payload, into[span], weight)


def statement_of(part: Contribution, roster: bytes, shard: int, codec: Codec, elements: int) -> bytes:
    """Return the bytes that a member signs for its contribution."""
    digest = blake3()
    for _, payload in tiles(codec, part.payload, elements):
        digest.update(payload)
    return part_statement(roster, shard, part.tokens, digest.digest())
