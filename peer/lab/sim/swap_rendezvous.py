"""The rendezvous of a simulated swap: its two sides wait for each other here, and a side that finishes first leaves a
copy of its payload for the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blake3 import blake3

from peer.exchange.throughput import MeasuredSource
from peer.protocol.messages import PeerId, PeerTimings, RoundKey
from peer.protocol.wire.payload import Sink, Source


class LingeringSource:
    """The payload of one side of a swap, readable after its sender has left and its params have changed. (Over gRPC the
    sender stays, or the receiver notices that it left.)"""

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
        """BLAKE3 of the bytes read so far. Covers the whole payload once the sender has left."""
        return self._digest.digest()

    def copy_rest(self) -> None:
        """Copy the unread rest of the payload, because the sender leaves."""
        if self._read == self.nbytes:
            return
        unmeasured = self._source.source if isinstance(self._source, MeasuredSource) else self._source
        rest = unmeasured.read(self._read, self.nbytes - self._read)
        self._source = _Rest(rest, self._read)
        self._digest.update(rest)
        self._read = self.nbytes


class _Rest:
    """The unread rest of a payload, from `begins` on."""

    def __init__(self, data: bytes, begins: int) -> None:
        self._data = data
        self._begins = begins
        self.nbytes, self.grain, self.most = begins + len(data), 1, max(1, len(data))

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset - self._begins :][:size]


@dataclass(slots=True)
class Meeting:
    """The meeting of the two sides of one swap."""

    sides: dict[PeerId, tuple[LingeringSource, Sink, PeerTimings | None]] = field(default_factory=dict)
    both: asyncio.Event = field(default_factory=asyncio.Event)
    complete: set[PeerId] = field(default_factory=set)
    """The sides that have received everything."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when both sides have received everything, or one has left."""

    def mark_complete(self, side: PeerId) -> None:
        """Mark a side as having received everything."""
        self.complete.add(side)
        if len(self.complete) == 2:
            self.over.set()


class Meetings:
    """All swap meetings of a network."""

    def __init__(self) -> None:
        self._meetings: dict[tuple[PeerId, PeerId, RoundKey], Meeting] = {}

    def of(self, one: PeerId, other: PeerId, key: RoundKey) -> Meeting:
        """Return the meeting of these two peers for this round, and make it if needed."""
        low, high = sorted((one, other))
        return self._meetings.setdefault((low, high, key), Meeting())

    def is_current(self, one: PeerId, other: PeerId, key: RoundKey, meeting: Meeting) -> bool:
        """Return whether neither side has left this meeting."""
        low, high = sorted((one, other))
        return self._meetings.get((low, high, key)) is meeting

    def leave(self, one: PeerId, other: PeerId, key: RoundKey) -> None:
        """Remove the meeting, because one side leaves it."""
        low, high = sorted((one, other))
        meeting = self._meetings.pop((low, high, key), None)
        if meeting is not None:
            meeting.over.set()
