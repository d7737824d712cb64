"""A payload that never lies in memory as a whole: encoded tile by tile as it is sent, decoded tile by tile as it comes.
Tiles stand for themselves, so that any part of a payload can be made again after a connection was lost."""

from __future__ import annotations

from torch import Tensor

from peer.codec.plain import TILE, Codec


class Encoding:
    """A `Source`: the payload of `values` (flat fp32, finite, unchanged until it is sent), made as it is read."""

    def __init__(self, codec: Codec, values: Tensor) -> None:
        self._codec = codec
        self._values = values
        self._tile_bytes = codec.nbytes(TILE)
        self._made = (-1, b"")

    @property
    def nbytes(self) -> int:
        return self._codec.nbytes(self._values.numel())

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from `offset` on: `size` of them."""
        assert 0 <= offset <= offset + size <= self.nbytes, (offset, size)
        parts = list[memoryview | bytes]()
        while size > 0:
            number, start = divmod(offset, self._tile_bytes)
            tile = self._tile(number)
            part = tile if (start, size) == (0, len(tile)) else memoryview(tile)[start : start + size]
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def _tile(self, number: int) -> bytes:
        if self._made[0] != number:
            self._made = number, self._codec.encode(self._values[number * TILE : (number + 1) * TILE])
        return self._made[1]


class Decoding:
    """A `Sink`: decodes into `into` (flat fp32) as the bytes come, in order. Complete when the last one was written;
    before that, or after a BadPayload, `into` is worth nothing."""

    def __init__(self, codec: Codec, into: Tensor) -> None:
        self._codec = codec
        self._into = into
        self._tile_bytes = codec.nbytes(TILE)
        self._received = 0
        self._piece = bytearray()

    @property
    def nbytes(self) -> int:
        return self._codec.nbytes(self._into.numel())

    def write(self, offset: int, data: bytes) -> None:
        """Raises BadPayload for bytes that no encoder writes."""
        assert offset == self._received, (offset, self._received)
        assert offset + len(data) <= self.nbytes, "the frame reader checks lengths"
        view = memoryview(data)
        while view:
            number, start = divmod(self._received, self._tile_bytes)
            due = min(self._tile_bytes, self.nbytes - number * self._tile_bytes) - start
            part, view = view[:due], view[due:]
            self._received += len(part)
            if start == 0 and len(part) == due:
                self._decode(number, part)
                continue
            self._piece += part
            if len(part) == due:
                self._decode(number, memoryview(self._piece))
                self._piece = bytearray()

    def _decode(self, number: int, payload: memoryview) -> None:
        self.take(payload, self._into[number * TILE : (number + 1) * TILE])

    def take(self, payload: memoryview, into: Tensor) -> None:
        """A whole tile."""
        self._codec.decode_into(payload, into)


class Adding(Decoding):
    """Adds `weight` times what comes to what is there."""

    def __init__(self, codec: Codec, into: Tensor, weight: float) -> None:
        super().__init__(codec, into)
        self._weight = weight

    def take(self, payload: memoryview, into: Tensor) -> None:
        self._codec.add(payload, into, self._weight)
