"""The swap of params at a few bits per parameter (`peer.codec.lattice.codec`). It takes three transfers in a round: the
payloads, a request for blocks that could not be decoded (one bit a block, usually all zero), and the answers, if blocks
were requested.

On failure: if any transfer fails or is wrong, nothing of the partner's params is used."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from peer.aio.tasks import uninterrupted
from peer.aio.threads import Offload
from peer.codec.blocks import BLOCK
from peer.codec.lattice.codec import Modulo, decode_request, encode_request
from peer.codec.lattice.spread import Distance, spread_of
from peer.codec.lattice.stream import ModuloDecoding, ModuloEncoding
from peer.codec.stream import Flat
from peer.protocol.wire.payload import BufferSink, BytesSource, Sink, Source


class Swap(Protocol):
    """Transfers our payload of one part of the round, and receives the partner's."""

    def __call__(self, part: int, source: Source, sink: Sink, /) -> Awaitable[None]: ...


class LatticeSwap:
    """Swaps params of a fragment at a few bits each. Remembers for each fragment how far partners differed, which sets
    the spread of the next encoding."""

    def __init__(self, bits: int, offload: Offload) -> None:
        self.codec = Modulo(bits)
        self._offload = offload
        self._distances: dict[int, Distance] = {}

    async def exchange(
        self, swap: Swap, fragment: int, own: Flat, outer: Tensor, into: Tensor, sent: Flat | None = None
    ) -> None:
        """Swap, and write the partner's rounded params into `into`, flat fp32.

        `own`, `outer`: our params and outer_params of the fragment. `sent`: values to send instead of `own`. None of
        them may change during the call. Raises BadPayload, and what `swap` raises. A cancelled call returns only when
        no thread writes to `into` any more."""
        codec, offload, sent = self.codec, self._offload, own if sent is None else sent
        distance = self._distances.setdefault(fragment, Distance())
        expected: Tensor = await offload(partial(distance.expected, own, outer))
        heads: bytes = await offload(partial(codec.encode_heads, sent, spread_of(expected)))
        theirs = ModuloDecoding(codec, own, into)
        await _swap_and_close(swap, ModuloEncoding(codec, sent, heads), theirs)
        failed, request = theirs.failed, encode_request(theirs.failed)
        wanted = decode_request(await _sent(swap, 1, request, len(request)), own.numel())
        if bool(torch.any(failed | wanted)):
            answer: bytes = await offload(partial(codec.encode_blocks, sent, heads, wanted))
            answered = await _sent(swap, 2, answer, BLOCK * int(failed.sum()))
            await uninterrupted(offload(partial(theirs.complete, answered)))
        await offload(partial(distance.learn, own, into, expected))


async def _swap_and_close(swap: Swap, ours: ModuloEncoding, theirs: ModuloDecoding) -> None:
    """Swap the payloads, and close both ends so that later reads or writes fail."""
    try:
        await swap(0, ours, theirs)
    finally:
        ours.close()
        theirs.close()


async def _sent(swap: Swap, part: int, payload: bytes, nbytes: int) -> bytearray:
    received = bytearray(nbytes)
    await swap(part, BytesSource(payload), BufferSink(nbytes, received))
    return received
