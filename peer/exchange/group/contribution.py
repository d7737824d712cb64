"""A member's contribution to a shard: how it is read, added up and signed, tile by tile."""

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
    """A complete contribution, as it travels."""

    tokens: int
    payload: Source
    signature: bytes = b""
    """The sender's, of `statement_of`."""


def tiles(codec: Codec, payload: Source, elements: int) -> Iterator[tuple[slice, bytes]]:
    """A payload of so many elements in parts that stand for themselves, and which elements each holds."""
    for start in range(0, elements, TILE):
        part = slice(start, min(start + TILE, elements))
        yield part, payload.read(start // TILE * codec.nbytes(TILE), codec.nbytes(part.stop - start))


def add_(part: Contribution, codec: Codec, into: Tensor, weight: float, *, first: bool) -> None:
    """Add as `peer.outer.robust_mean.weighted_mean` does, to the bit."""
    for span, payload in tiles(codec, part.payload, into.numel()):
        if first:
            codec.decode_into(payload, into[span])
            into[span].mul_(weight)
        else:
            codec.add(payload, into[span], weight)


def statement_of(part: Contribution, roster: bytes, shard: int, codec: Codec, elements: int) -> bytes:
    """Return the bytes that a member signs with its contribution."""
    digest = blake3()
    for _, payload in tiles(codec, part.payload, elements):
        digest.update(payload)
    return part_statement(roster, shard, part.tokens, digest.digest())
