"""Payloads that lie in memory: the plain `Source` and `Sink`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peer.protocol.wire.frames import MAX_CHUNK


class BytesSource:
    """A payload to send."""

    grain = 1
    most = MAX_CHUNK

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])


class BufferSink:
    """Collects a payload of a length known, and bounded, beforehand. `data`: where."""

    def __init__(self, nbytes: int, data: bytearray | memoryview | None = None) -> None:
        self.data = bytearray(nbytes) if data is None else data

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def write(self, offset: int, data: bytes) -> None:
        assert offset + len(data) <= len(self.data), "the frame reader checks lengths"
        self.data[offset : offset + len(data)] = data


Arrived = Callable[[int], None]
"""Is told how many more bytes of a payload have come."""


def ignore_arrival(nbytes: int) -> None:
    """Tell nobody."""


class CountedSink(BufferSink):
    """A `BufferSink` that tells `arrived` what comes."""

    def __init__(self, nbytes: int, arrived: Arrived) -> None:
        super().__init__(nbytes)
        self._arrived = arrived

    def write(self, offset: int, data: bytes) -> None:
        super().write(offset, data)
        self._arrived(len(data))


class Source(Protocol):
    """A payload to send, read once from front to back."""

    @property
    def nbytes(self) -> int: ...

    @property
    def grain(self) -> int:
        """Bytes: chunks of a multiple of this are the cheapest to read."""

    @property
    def most(self) -> int:
        """Bytes: a larger chunk would hold up the event loop while it is made."""

    def read(self, offset: int, size: int) -> bytes: ...


class Sink(Protocol):
    """The receiver of a payload of exactly `nbytes`, chunk by chunk, in order, each chunk's checksum already
    verified."""

    @property
    def nbytes(self) -> int: ...

    def write(self, offset: int, data: bytes) -> None: ...
