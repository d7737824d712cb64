"""Lattice payloads (`peer.codec.lattice.codec`) that are encoded while they are sent and decoded as they arrive. Memory
holds the heads (4 bytes per 128 values) and one tile."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from peer.codec.lattice.codec import HEAD_BYTES, Modulo, count_blocks, rows_at
from peer.codec.plain import TILE, Payload
from peer.codec.stream import Flat, PayloadDecoder, PayloadEncoder, swap_ended


class ModuloEncoding:
    """A `Source` of a lattice payload: `heads`, which `Modulo.encode_heads` made of `values`, then the low bits,
    encoded tile by tile."""

    def __init__(self, codec: Modulo, values: Flat, heads: bytes) -> None:
        self._heads = heads
        self._lows = _LowsOut(codec, values, codec.steps_of(heads, values.numel()))

    @property
    def nbytes(self) -> int:
        return len(self._heads) + self._lows.nbytes

    @property
    def grain(self) -> int:
        return self._lows.grain

    @property
    def most(self) -> int:
        return self._lows.grain

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the payload from `offset` on. Raises PartnerLost after `close`."""
        head = self._heads[offset : offset + size]
        return head + self._lows.read(max(0, offset - len(self._heads)), size - len(head))

    def close(self) -> None:
        """Stop reading the values, which may change from now on."""
        self._lows.close()


class ModuloDecoding:
    """A `Sink` that decodes into `into` (flat fp32), guided by `own` (same length, not changed).

    It is complete after the last byte. Then `failed` is True for each undetermined block, in which `into` holds the own
    values until `complete`. After a BadPayload, `into` holds no usable values."""

    def __init__(self, codec: Modulo, own: Flat, into: Tensor) -> None:
        assert into.shape == (own.numel(),), (into.shape, own.numel())
        self._codec = codec
        self._own = own
        self._into = into
        self._head = bytearray()
        self._lows: _LowsIn | None = None
        self._closed = False
        self.nbytes = codec.nbytes(own.numel())
        self._open()

    @property
    def failed(self) -> Tensor:
        assert self._lows is not None, "it is complete"
        return self._lows.failed

    def write(self, offset: int, data: bytes) -> None:
        """Receive the next bytes of the payload. Raises BadPayload (`scale`), and PartnerLost after `close`."""
        if self._closed:
            raise swap_ended()
        view, missing = memoryview(data), HEAD_BYTES * count_blocks(self._own.numel()) - len(self._head)
        if missing > 0:
            assert offset == len(self._head), (offset, len(self._head))
            self._head += view[:missing]
            view, offset = view[missing:], offset + min(len(view), missing)
            self._open()
        if view:
            assert self._lows is not None
            self._lows.write(offset - len(self._head), view)

    def complete(self, answer: Payload) -> None:
        """Complete the failed blocks from the sender's answer. Raises BadPayload as `Modulo.decode_blocks_` does."""
        assert self._lows is not None
        lows = self._lows
        self._codec.complete_(self._into, lows.heads, lows.failed, lambda rows, chosen: lows.kept[rows.start], answer)

    def close(self) -> None:
        """Stop writing to `into`, which another user may now change."""
        self._closed = True

    def _open(self) -> None:
        if len(self._head) == HEAD_BYTES * count_blocks(self._own.numel()):
            self._lows = _LowsIn(self._codec, self._own, self._into, self._head)


class _LowsOut(PayloadEncoder):
    """Source of the low bits."""

    def __init__(self, codec: Modulo, values: Flat, steps: Tensor) -> None:
        super().__init__(codec.low_bytes, values)
        self._codec = codec
        self._steps = steps

    def tiles(self, first: int, end: int) -> bytes:
        return b"".join(self._tile(number) for number in range(first, end))

    def _tile(self, number: int) -> bytes:
        return self._codec.encode_lows(self.tile_values(number, number + 1), self._steps[rows_at(number * TILE)])


class _LowsIn(PayloadDecoder):
    """Sink of the low bits, which decodes each tile with the `head` received before."""

    def __init__(self, codec: Modulo, own: Flat, into: Tensor, head: bytearray) -> None:
        super().__init__(codec.low_bytes, own.numel())
        self._codec = codec
        self._own = own
        self._into = into
        self.heads = codec.heads(torch.from_numpy(np.frombuffer(head, np.uint8)), own.numel())
        self.failed = torch.zeros(count_blocks(own.numel()), dtype=torch.bool)
        self.kept: dict[int, Tensor] = {}
        """Low parts of the blocks that failed, keyed by the first block of their tile. `complete` needs them."""

    def decode_tiles(self, first: int, end: int, payload: memoryview) -> None:
        for number in range(first, end):
            at = self._codec.low_bytes((number - first) * TILE)
            self._decode_tile(number, payload[at : at + self._codec.low_bytes(TILE)])

    def _decode_tile(self, number: int, packed: memoryview) -> None:
        start, stop = number * TILE, min((number + 1) * TILE, self._own.numel())
        rows, (steps, checks) = rows_at(start), self.heads
        lows = self._codec.read_lows(np.frombuffer(packed, np.uint8), stop - start)
        into = self._into[start:stop]
        failed = self._codec.decode_tile(self._own[start:stop], lows, steps[rows], checks[rows], into)
        if bool(failed.any()):
            self.failed[rows] = failed
            self.kept[rows.start] = lows[failed]
