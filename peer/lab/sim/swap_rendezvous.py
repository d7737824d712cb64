"""The rendezvous of a simulated swap: the meeting of its two sides, and the payload that a side leaves behind when it
is done first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blake3 import blake3

from peer.exchange.throughput import MeasuredSource
from peer.protocol.messages import PeerId, PeerTimings, RoundKey
from peer.protocol.wire.payload import Sink, Source


class LingeringSource:
    """A side's payload that outlives its sender's part in the swap. The receiver may still read when the sender has
    left and its params move on. (Over gRPC the sender stays, or the receiver notices that it left.)"""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read = 0
        self._digest = blake3()
        self.nbytes, self.grain, self.most = source.nbytes, source.grain, source.most

    def read(self, offset: int, size: int) -> bytes:
        data = self._source.read(offset, size)
        if offset == self._read:
            self._read += len(data)
            self._digest.update(data)
        return data

    @property
    def digest(self) -> bytes:
        """BLAKE3 of what was sent; complete once the sender has left."""
        return self._digest.digest()

    def copy_rest(self) -> None:
        """Copy the unread rest: the sender leaves."""
        if self._read == self.nbytes:
            return
        unmeasured = self._source.source if isinstance(self._source, MeasuredSource) else self._source
        rest = unmeasured.read(self._read, self.nbytes - self._read)
        self._source = _Rest(rest, self._read)
        self._digest.update(rest)
        self._read = self.nbytes


class _Rest:
    """The end of a payload."""

    def __init__(self, data: bytes, begins: int) -> None:
        self._data = data
        self._begins = begins
        self.nbytes, self.grain, self.most = begins + len(data), 1, max(1, len(data))

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset - self._begins :][:size]


@dataclass(slots=True)
class Meeting:
    """Two sides of one swap, waiting for each other."""

    sides: dict[PeerId, tuple[LingeringSource, Sink, PeerTimings | None]] = field(default_factory=dict)
    both: asyncio.Event = field(default_factory=asyncio.Event)
    complete: set[PeerId] = field(default_factory=set)
    """Sides that have everything."""


class Meetings:
    """The meetings of a network."""

    def __init__(self) -> None:
        self._meetings: dict[tuple[PeerId, PeerId, RoundKey], Meeting] = {}

    def of(self, one: PeerId, other: PeerId, key: RoundKey) -> Meeting:
        low, high = sorted((one, other))
        return self._meetings.setdefault((low, high, key), Meeting())

    def is_current(self, one: PeerId, other: PeerId, key: RoundKey, meeting: Meeting) -> bool:
        """Whether neither side has left it."""
        low, high = sorted((one, other))
        return self._meetings.get((low, high, key)) is meeting

    def leave(self, one: PeerId, other: PeerId, key: RoundKey) -> None:
        """Remove the meeting: a side leaves."""
        low, high = sorted((one, other))
        self._meetings.pop((low, high, key), None)
