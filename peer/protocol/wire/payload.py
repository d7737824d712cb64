"""Interfaces of the two ends of a payload (`Source`, `Sink`), and their implementations for payloads in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peer.protocol.wire.frames import MAX_CHUNK


class BytesSource:
    """A payload in memory, to send."""

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
    """Collects a payload of a known, bounded length in memory. `data`: the buffer to use."""

    def __init__(self, nbytes: int, data: bytearray | memoryview | None = None) -> None:
        self.data = bytearray(nbytes) if data is None else data

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def write(self, offset: int, data: bytes) -> None:
        assert offset + len(data) <= len(self.data), "the frame reader checks lengths"
        self.data[offset : offset + len(data)] = data


Arrived = Callable[[int], None]
"""Called with the number of bytes of a payload that have just arrived."""


def ignore_arrival(nbytes: int) -> None:
    """An `Arrived` that does nothing."""


class CountedSink(BufferSink):
    """A `BufferSink` that reports arriving bytes to `arrived`."""

    def __init__(self, nbytes: int, arrived: Arrived) -> None:
        super().__init__(nbytes)
        self._arrived = arrived

    def write(self, offset: int, data: bytes) -> None:
        super().write(offset, data)
        self._arrived(len(data))


class Source(Protocol):
    """A payload to send, read once from start to end."""

    @property
    def nbytes(self) -> int: ...

    @property
    def grain(self) -> int:
        """Chunks whose size is a multiple of this number of bytes are the cheapest to read."""

    @property
    def most(self) -> int:
        """Maximum bytes of a chunk. Larger ones would block the event loop while they are made."""

    def read(self, offset: int, size: int) -> bytes: ...


class Sink(Protocol):
    """The receiver of a payload of exactly `nbytes`. Chunks arrive in order, with their checksums verified."""

    @property
    def nbytes(self) -> int: ...

    def write(self, offset: int, data: bytes) -> None: ...
