"""The sparse result of a shard, for contributions in `topk` (SparseLoCo, arXiv 2508.15706, gathers the contributions
themselves). `peer.methods.codec_specs` decides which of its two forms is used, and gives their sizes.

*Relayed*: each contributor's tokens, factor and signature, then the payloads. Every member adds them up itself in the
same order, so nothing is rounded a second time, and the owner can neither change nor invent a part. It can only leave a
part out or scale it down (`factor`, see `peer.outer.robust_mean.factors`). *Joined*: the owner's sum, encoded by
`peer.codec.joined`.

On failure: a result that cannot be decoded, or contains a part that its contributor did not sign, is refused as a
whole."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from torch import Tensor

from peer.codec.joined import decode_joined, encode_joined
from peer.codec.plain import Codec, Payload
from peer.codec.stream import Decoding
from peer.codes import Code
from peer.errors import BadPayload
from peer.exchange.group.contribution import Contribution, add_
from peer.methods.codec_specs import PART_HEAD, SPARSE, is_relayed, joined_nbytes, largest_result, relayed_nbytes
from peer.outer.pages import pages
from peer.outer.robust_mean import Weigh, fractions
from peer.protocol.group.shards import MAX_TOKENS
from peer.protocol.wire.payload import BufferSink, BytesSource

HEAD = struct.Struct("<Qf64s")
"""Tokens, factor, signature."""
assert HEAD.size == PART_HEAD

Counted = tuple[Contribution, float]
"""A contribution and its factor, above 0 and at most 1."""
Genuine = Callable[[int, Contribution], bool]
"""Returns whether the contributor with this index signed this part."""


class SparseResult:
    """The codec of a shard's result when the contributions are sparse, in its two forms *relayed* and *joined*.

    `codec`: decodes the contributions. `weigh`: turns the contributors' token counts into weights."""

    name = SPARSE

    def __init__(self, codec: Codec, weigh: Weigh = fractions) -> None:
        self._codec = codec
        self._weigh = weigh

    def make(self, parts: Sequence[Counted], into: Tensor) -> memoryview:
        """Encode the result of these contributions. `into`: flat fp32 of the shard, used as working memory."""
        if not is_relayed(into.numel(), len(parts)):
            self._add_up_(parts, into)
            return memoryview(encode_joined(into))
        payload, at = pages(relayed_nbytes(into.numel(), len(parts))), 0
        for part, factor in parts:
            HEAD.pack_into(payload, at, part.tokens, factor, part.signature)
            at += HEAD.size
        for part, _ in parts:
            payload[at : at + part.payload.nbytes] = part.payload.read(0, part.payload.nbytes)
            at += part.payload.nbytes
        return payload

    def sink(self, nbytes: int, elements: int, parts: int) -> BufferSink:
        """Return a sink for a result of `parts` parts. Raises BadPayload for an impossible length, before memory is
        allocated."""
        if not parts:
            raise BadPayload(Code.NAMED, "a result of nobody")
        most = largest_result(SPARSE, elements, parts)
        least = most if is_relayed(elements, parts) else joined_nbytes(elements, 0)
        if not least <= nbytes <= most:
            raise BadPayload(Code.LENGTH, f"a result of {nbytes} bytes, {least} to {most} are due")
        return BufferSink(nbytes, pages(nbytes))

    def read(self, payload: Payload, parts: int, into: Tensor, genuine: Genuine) -> None:
        """Decode a result of `parts` parts into `into`. Raises BadPayload; `into` is undefined then."""
        if not is_relayed(into.numel(), parts):
            decode_joined(payload, into)
            return
        counted = self._relayed(memoryview(payload), parts, into.numel())
        for number, (part, _) in enumerate(counted):
            if not genuine(number, part):
                raise BadPayload(Code.SIGNATURE, "the result holds a part that its contributor did not sign")
        self._add_up_(counted, into)

    def _relayed(self, payload: memoryview, parts: int, elements: int) -> list[Counted]:
        if len(payload) != relayed_nbytes(elements, parts):
            raise BadPayload(Code.LENGTH, f"{len(payload)} bytes for {parts} parts of {elements} elements")
        nbytes, counted = self._codec.nbytes(elements), list[Counted]()
        for number in range(parts):
            tokens, factor, signature = HEAD.unpack_from(payload, number * HEAD.size)
            if not (0 < tokens < MAX_TOKENS and 0 < factor <= 1):
                raise BadPayload(Code.WEIGHT, f"a part of {tokens} tokens that counts {factor:g} times")
            begins = parts * HEAD.size + number * nbytes
            counted.append((Contribution(tokens, BytesSource(payload[begins : begins + nbytes]), signature), factor))
        return counted

    def _add_up_(self, parts: Sequence[Counted], into: Tensor) -> None:
        weights = self._weigh([part.tokens for part, _ in parts])
        for number, ((part, factor), weight) in enumerate(zip(parts, weights, strict=True)):
            add_(part, self._codec, into, weight * factor, first=number == 0)


ResultCodec = Codec | SparseResult


def sink_for(codec: ResultCodec, nbytes: int, into: Tensor, parts: int) -> Decoding | BufferSink:
    """Return a sink for a result of `parts` parts with the announced length `nbytes`. Raises BadPayload for an
    impossible length."""
    if isinstance(codec, SparseResult):
        return codec.sink(nbytes, into.numel(), parts)
    if nbytes != (due := codec.nbytes(into.numel())):
        raise BadPayload(Code.LENGTH, f"a result of {nbytes} bytes, {due} are due")
    return Decoding(codec, into)
