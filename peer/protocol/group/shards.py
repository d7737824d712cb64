"""The shards of a fragment: one for each dialable member of the roster, each owned by one of them. Every peer computes
the same from the roster, so none of it is sent."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.wire.frames import PayloadReader
from peer.protocol.wire.payload import Sink

ALIGN = 128
"""Elements: the block of the codecs, none of which lies in two shards."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A half-open range of elements of the fragment."""

    index: int
    start: int
    end: int
    owner: PeerId

    @property
    def elements(self) -> int:
        return self.end - self.start


def cut(roster: bytes, owners: Sequence[PeerId], elements: int, align: int = ALIGN) -> list[Shard]:
    """Cut a fragment into shards, in order, none empty: one for each owner, or fewer where it has fewer blocks of
    `align` elements. Sizes differ by one block at most (the last may be shorter).

    Owners are found by rendezvous hashing over (roster, shard), with a cap of one. The first shard takes the peer of
    best score, the next one the best of the rest. So no peer owns more than one. The roster's name is part of the
    score, so no peer can choose what it will own."""
    assert elements > 0
    assert owners
    blocks = -(-elements // align)
    count = min(len(owners), blocks)
    edges = [min(elements, align * (number * blocks // count)) for number in range(count)] + [elements]
    left, shards = set(owners), []
    for index in range(count):
        owner = min(left, key=lambda peer: _score(roster, index, peer))
        left.remove(owner)
        shards.append(Shard(index, edges[index], edges[index + 1], owner))
    return shards


def _score(roster: bytes, shard: int, peer: PeerId) -> tuple[bytes, PeerId]:
    return hashlib.blake2b(f"{shard}/{peer}".encode(), digest_size=16, key=roster[:32]).digest(), peer


@dataclass(frozen=True, slots=True)
class ContributionHeader:
    """The first message of a contribution."""

    key: RoundKey
    roster: bytes
    """Its name, 32 bytes."""
    shard: int
    tokens: int
    """The weight."""
    nbytes: int
    """Bytes of the contribution. 0: only the result is wanted."""
    transfer: int = 0
    """The contribution's name over all its streams, set by the transport. 0: it cannot be resumed."""
    have: int = 0
    """Bytes of the result that former streams brought."""


MAX_TOKENS = 2**53
"""Most tokens of a contribution: integers that a double holds exactly."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """An owner's result: the encoded mean, and the members in it."""

    payload: bytes | bytearray | memoryview
    named: tuple[int, ...]
    """Indices into the roster's members, ascending."""
    signature: bytes = b""
    """The owner's, of `peer.protocol.group.receipts`."""


class ResultSink(Sink, Protocol):
    """A member's sink for the result of a shard."""

    def begins(self, named: tuple[int, ...], signature: bytes) -> None:
        """Before its first byte, once: who is said to be in it, unchecked, and the owner's signature. Raises
        BadPayload."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A member's report of one contribution. The payload and the members in it are in its sink."""

    bytes_sent: int
    bytes_received: int
    seconds: float


class UploadSlot:
    """A served contribution: where its bytes go, and what comes of it. Made by the owner, used by a transport."""

    sink: Sink | None
    """None: nothing is to be sent, only the result is wanted."""
    patience_s: float = 60.0
    """Seconds that the contribution may take to arrive."""
    reader: PayloadReader | None = None
    """The reader of the bytes that former streams brought. None: none came."""
    transfer: int = 0
    """The header's transfer, if the owner resumes it over another stream, else 0."""
    have: int = 0
    """Bytes of the contribution that are here already. All of them: nothing more is to be sent."""

    def complete(self) -> None:
        """Confirm that the complete contribution is in the sink, verified. Raises PartnerRefused when it came too late,
        PartnerLost when another stream has resumed it."""
        raise NotImplementedError

    def spoilt(self) -> None:
        """Reject the contribution: it is wrong, and no stream may resume it."""

    async def result(self) -> ShardResult:
        """Wait for the result, within the owner's deadline. Raises PartnerRefused when there is none."""
        raise NotImplementedError

    def taken(self) -> None:
        """Note that the member has the complete result."""

    def leave(self) -> None:
        """End the call, whatever its outcome, and free the slot. May be called again."""
        raise NotImplementedError


def check_named(named: Sequence[int], members: int) -> tuple[int, ...]:
    """Indices of contributors as they came. Raises ValueError unless ascending, each once, and within the roster."""
    if any(not 0 <= index < members for index in named):
        raise ValueError("named")
    if any(one >= other for one, other in itertools.pairwise(named)):
        raise ValueError("order")
    return tuple(named)
