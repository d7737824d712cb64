"""The shards of a fragment: one for each dialable member of the roster, each owned by one of them. Every peer computes
the same from the roster, so none of it is sent."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.protocol.messages import DIRECT, PeerId, Reach, RoundKey, Way
from peer.protocol.model.fragments import Span
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


RELAYED_SHARE = 0.5
"""Part of a relay's cap that an owner behind it may count on. Other circuits share the cap."""


def owner_reach(reach: Reach, rate: float, nbytes: int, seconds: float) -> Reach:
    """Return how a member says that it can be called when a roster is made, which decides who owns shards.

    A relayed member owns a shard beside those that can be dialled if its path is fast enough: it says DIRECT. `rate`:
    bytes per second of its best relay. `nbytes`: what an owner takes in parts and gives in results, as many as the
    whole fragment has in both. `seconds`: from one round to the next."""
    if reach is Reach.RELAYED and RELAYED_SHARE * rate * seconds >= nbytes:
        return Reach.DIRECT
    return reach


def cut(
    roster: bytes, owners: Sequence[PeerId], elements: int, align: int = ALIGN, whole: Sequence[Span] = ()
) -> list[Shard]:
    """Cut a fragment into shards, in order, none empty: one for each owner, or fewer where `edges` has fewer.

    Owners are found by rendezvous hashing over (roster, shard), with a cap of one. The first shard takes the peer of
    best score, the next one the best of the rest. So no peer owns more than one. The roster's name is part of the
    score, so no peer can choose what it will own."""
    left, shards = set(owners), []
    for index, (start, end) in enumerate(itertools.pairwise(edges(len(owners), elements, align, whole))):
        owner = min(left, key=lambda peer: _score(roster, index, peer))
        left.remove(owner)
        shards.append(Shard(index, start, end, owner))
    return shards


def edges(owners: int, elements: int, align: int = ALIGN, whole: Sequence[Span] = ()) -> list[int]:
    """Return where the shards begin, and the end of the last.

    At first there are as many as owners, or as blocks of `align` elements where these are fewer, and their sizes differ
    by one block at most (the last may be shorter). `whole`: spans that lie in one shard each. An edge inside of one
    moves to its nearer end. So no shard has more than its part and the largest of these spans, and there may be fewer
    shards."""
    assert elements > 0
    assert owners > 0
    blocks = -(-elements // align)
    count = min(owners, blocks)
    equal = [min(elements, align * (number * blocks // count)) for number in range(count)] + [elements]
    return sorted({_moved(edge, whole) for edge in equal})


def _moved(edge: int, whole: Sequence[Span]) -> int:
    for start, end in whole:
        if start < edge < end:
            return start if edge - start <= end - edge else end
    return edge


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
    signature: bytes = b""
    """The sender's, over `peer.protocol.group.receipts.part_statement`. Empty: an earlier version's, where results are
    not sparse."""


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

    def begins(self, named: tuple[int, ...], signature: bytes, nbytes: int) -> None:
        """Before its first byte, once: who is said to be in it, the owner's signature, and its bytes, all unchecked.
        `nbytes` of the sink is what it has from here on. Raises BadPayload."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A member's report of one contribution. The payload and the members in it are in its sink."""

    bytes_sent: int
    bytes_received: int
    seconds: float
    way: Way = DIRECT
    """The path of the last connection that it used."""


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

    def reject(self) -> None:
        """Reject the contribution: it is wrong, and no stream may resume it."""

    async def result(self) -> ShardResult:
        """Wait for the result, within the owner's deadline. Raises PartnerRefused when there is none."""
        raise NotImplementedError

    def mark_delivered(self) -> None:
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
