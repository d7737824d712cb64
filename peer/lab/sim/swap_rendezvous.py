"""Where the two sides of a simulated swap find each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from peer.lab.sim.lingering_source import LingeringSource
from peer.protocol.messages import PeerId, PeerTimings, RoundKey
from peer.protocol.wire.payload import Sink


@dataclass(slots=True)
class Meeting:
    """Two sides of one swap, waiting for each other."""

    sides: dict[PeerId, tuple[LingeringSource, Sink, PeerTimings | None]] = field(default_factory=dict)
    both: asyncio.Event = field(default_factory=asyncio.Event)
    content: set[PeerId] = field(default_factory=set)
    """Who has everything."""


class Meetings:
    """All of a network."""

    def __init__(self) -> None:
        self._meetings: dict[tuple[PeerId, PeerId, RoundKey], Meeting] = {}

    def of(self, one: PeerId, other: PeerId, key: RoundKey) -> Meeting:
        low, high = sorted((one, other))
        return self._meetings.setdefault((low, high, key), Meeting())

    def is_on(self, one: PeerId, other: PeerId, key: RoundKey, meeting: Meeting) -> bool:
        """Whether neither side has left it."""
        low, high = sorted((one, other))
        return self._meetings.get((low, high, key)) is meeting

    def part(self, one: PeerId, other: PeerId, key: RoundKey) -> None:
        """A side leaves."""
        low, high = sorted((one, other))
        self._meetings.pop((low, high, key), None)
