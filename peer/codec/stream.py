"""Payloads that are encoded tile by tile while they are sent, and decoded tile by tile as they arrive, so that no
payload is in memory as a whole. Tiles are encoded independently, so any part can be encoded again after a connection
broke."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from peer.codec.kernels import TILES_AT_ONCE
from peer.codec.plain import TILE, Codec
from peer.errors import PartnerLost


class Flat(Protocol):
    """Flat fp32 values that are read in slices, such as a tensor. A slice is read-only: it may be a view of the
    trainer's snapshot or of `outer_params`."""

    def numel(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tensor: ...


class PayloadEncoder(ABC):
    """A `Source` that encodes `values` tile by tile, as they are read.

    `values` must not change until the payload is sent or the source is closed. `nbytes(elements)` gives the length of a
    payload in bytes."""

    def __init__(self, nbytes: Callable[[int], int], values: Flat) -> None:
        self._nbytes = nbytes
        self._values = values
        self._closed = False
        self._tile_bytes = nbytes(TILE)
        self._last = (-1, b"")

    @abstractmethod
    def tiles(self, first: int, end: int) -> bytes:
        """Return the payload of the tiles with numbers from `first` up to, not including, `end`."""

    @property
    def nbytes(self) -> int:
        return self._nbytes(self._values.numel())

    @property
    def grain(self) -> int:
        return self._tile_bytes

    @property
    def most(self) -> int:
        return TILES_AT_ONCE * self._tile_bytes

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the payload from `offset` on. Raises PartnerLost after `close`."""
        if self._closed:
            raise swap_ended()
        end = offset + size
        assert 0 <= offset <= end <= self.nbytes, (offset, size)
        if size == 0:
            return b""
        first, cut = divmod(offset, self._tile_bytes)
        whole, rest = divmod(end, self._tile_bytes)
        if cut == 0 and (rest == 0 or end == self.nbytes):
            return self.tiles(first, whole + 1 if rest else whole)
        parts = (self._tile_part(number, offset, end) for number in range(first, whole + 1 if rest else whole))
        return b"".join(parts)

    def _tile_part(self, number: int, offset: int, end: int) -> memoryview:
        """Return the part of this tile that lies between the payload offsets `offset` and `end`."""
        if self._last[0] != number:
            self._last = number, self.tiles(number, number + 1)
        begins = number * self._tile_bytes
        return memoryview(self._last[1])[max(0, offset - begins) : end - begins]

    def tile_values(self, first: int, end: int) -> Tensor:
        """Return the values of the tiles from `first` up to, not including, `end`."""
        return self._values[first * TILE : min(end * TILE, self._values.numel())]

    def close(self) -> None:
        """Stop reading the values, which may change from now on. A later `read` raises PartnerLost."""
        self._closed = True


class Encoding(PayloadEncoder):
    """The payload of `values` (flat fp32, finite) in any `Codec`."""

    def __init__(self, codec: Codec, values: Flat) -> None:
        super().__init__(codec.nbytes, values)
        self._codec = codec

    def tiles(self, first: int, end: int) -> bytes:
        return self._codec.encode(self.tile_values(first, end))


class PayloadDecoder(ABC):
    """A `Sink` that receives a payload in order and hands complete tiles to `decode_tiles`.

    `nbytes(n)` gives the length in bytes of a payload of n elements; `elements` are expected."""

    def __init__(self, nbytes: Callable[[int], int], elements: int) -> None:
        self._nbytes = nbytes(elements)
        self._tile_bytes = nbytes(TILE)
        self._received = 0
        self._piece = bytearray()
        self._closed = False

    @abstractmethod
    def decode_tiles(self, first: int, end: int, payload: memoryview) -> None:
        """Process the complete payload of the tiles from `first` up to, not including, `end`. The buffer must not be
        kept. Raises BadPayload for bytes that no encoder writes."""

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Receive the next bytes of the payload; `offset` is their position. Raises BadPayload, and PartnerLost after
        `close`."""
        if self._closed:
            raise swap_ended()
        assert offset == self._received, (offset, self._received)
        assert offset + len(data) <= self.nbytes, "the frame reader checks lengths"
        view = memoryview(data)
        while view:
            number, start = divmod(self._received, self._tile_bytes)
            at_end = self._received + len(view) == self.nbytes
            whole = len(view) if at_end else len(view) - len(view) % self._tile_bytes
            if start == 0 and whole:
                part, view = view[:whole], view[whole:]
                self._received += whole
                self._decode_tiles_from(number, part)
                continue
            due = min(self._tile_bytes, self.nbytes - number * self._tile_bytes) - start
            part, view = view[:due], view[due:]
            self._received += len(part)
            self._piece += part
            if len(part) == due:
                self._decode_tiles_from(number, memoryview(self._piece))
                self._piece = bytearray()

    def _decode_tiles_from(self, first: int, payload: memoryview) -> None:
        self.decode_tiles(first, first - (-len(payload) // self._tile_bytes), payload)

    def close(self) -> None:
        """Stop writing to the target, which another user may now change. A later `write` raises PartnerLost."""
        self._closed = True


class Decoding(PayloadDecoder):
    """A sink that decodes into `into` (flat fp32). It is complete after the last byte. Until then, and after a
    BadPayload, `into` holds no usable values."""

    def __init__(self, codec: Codec, into: Tensor) -> None:
        super().__init__(codec.nbytes, into.numel())
        self._codec = codec
        self._into = into

    def decode_tiles(self, first: int, end: int, payload: memoryview) -> None:
        self.decode_slice(payload, self._into[first * TILE : end * TILE])

    def decode_slice(self, payload: memoryview, into: Tensor) -> None:
        """Decode the payload of complete tiles into their slice of the target."""
        self._codec.decode_into(payload, into)


class Adding(Decoding):
    """A sink that adds `weight` times the decoded values to `into`."""

    def __init__(self, codec: Codec, into: Tensor, weight: float) -> None:
        super().__init__(codec, into)
        self._weight = weight

    def decode_slice(self, payload: memoryview, into: Tensor) -> None:
        self._codec.add(payload, into, self._weight)


def swap_ended() -> PartnerLost:
    return PartnerLost("this side's part in the swap is over")
