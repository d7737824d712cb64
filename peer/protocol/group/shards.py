"""Division of a fragment into shards, one for each callable member of the roster, and the values that members and
owners exchange about them. Every peer computes the same division from the roster, so it is not sent."""

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
"""Elements of a codec block. A block is never divided between two shards."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A half-open range of elements of the fragment, and its owner."""

    index: int
    start: int
    end: int
    owner: PeerId

    @property
    def elements(self) -> int:
        return self.end - self.start


RELAYED_SHARE = 0.5
"""Fraction of a relay's cap that an owner behind it may rely on. Other circuits share the cap."""


def owner_reach(reach: Reach, rate: float, nbytes: int, seconds: float) -> Reach:
    """Return the reach that a member gives in its join, which decides who owns shards.

    A relayed member may own a shard like a directly callable one if its path is fast enough. Its join then contains
    DIRECT. `rate`: bytes per second of its best relay. `nbytes`: bytes of the whole fragment, about what an owner
    receives in contributions and sends in results. `seconds`: from one round to the next."""
    if reach is Reach.RELAYED and RELAYED_SHARE * rate * seconds >= nbytes:
        return Reach.DIRECT
    return reach


def cut(
    roster: bytes, owners: Sequence[PeerId], elements: int, align: int = ALIGN, whole: Sequence[Span] = ()
) -> list[Shard]:
    """Divide a fragment into shards, in order and not empty: one for each owner, or fewer if `edges` has fewer.

    Owners are chosen by rendezvous hashing over (roster, shard) with at most one shard each: the first shard gets the
    peer with the best score, the next the best of the rest. The score depends on the roster's name, so no peer can
    choose what it will own."""
    left, shards = set(owners), []
    for index, (start, end) in enumerate(itertools.pairwise(edges(len(owners), elements, align, whole))):
        owner = min(left, key=lambda peer: _score(roster, index, peer))
        left.remove(owner)
        shards.append(Shard(index, start, end, owner))
    return shards


def edges(owners: int, elements: int, align: int = ALIGN, whole: Sequence[Span] = ()) -> list[int]:
    """Return the starts of the shards, and the end of the last one.

    There are as many shards as owners, or as blocks of `align` elements if these are fewer. Their sizes differ by at
    most one block (the last may be shorter). `whole`: spans that must each be within one shard. An edge inside such a
    span moves to the nearer end of the span. So a shard is at most one such span larger, and there may be fewer
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
    """Name of the roster, 32 bytes."""
    shard: int
    tokens: int
    """Weight of the contribution."""
    nbytes: int
    """Bytes of the contribution. 0: the sender wants the result only."""
    transfer: int = 0
    """Identifies the contribution over several streams; set by the transport. 0: it cannot be resumed."""
    have: int = 0
    """Bytes of the result that earlier streams delivered."""
    signature: bytes = b""
    """Signature of the sender over `peer.protocol.group.receipts.part_statement`. Empty in earlier versions, unless
    results are sparse."""


MAX_TOKENS = 2**53
"""Maximum tokens of a contribution: a double represents integers exactly up to here."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """An owner's result: the encoded mean and its contributors."""

    payload: bytes | bytearray | memoryview
    named: tuple[int, ...]
    """Indices of contributors in the roster's members, ascending."""
    signature: bytes = b""
    """Signature of the owner (`peer.protocol.group.receipts`)."""


class ResultSink(Sink, Protocol):
    """Receives the result of a shard on the side of a member."""

    def begins(self, named: tuple[int, ...], signature: bytes, nbytes: int) -> None:
        """Called once before the first byte of the result, with its claimed contributors, the owner's signature and the
        size, none of them verified. From then on the sink's `nbytes` is this size. Raises BadPayload."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Statistics of one contribution. The result itself is in the sink."""

    bytes_sent: int
    bytes_received: int
    seconds: float
    way: Way = DIRECT
    """Path of the last connection that the contribution used."""


class UploadSlot:
    """The owner's end of one contribution: receives its bytes and returns the result. A transport drives it."""

    sink: Sink | None
    """Destination of the contribution. None: the sender wants the result only."""
    patience_s: float = 60.0
    """Seconds within which the contribution has to arrive."""
    reader: PayloadReader | None = None
    """Reader that continues what earlier streams delivered. None: there were none."""
    transfer: int = 0
    """`ContributionHeader.transfer`, if the owner can resume it over another stream, else 0."""
    have: int = 0
    """Bytes of the contribution that have already arrived. If these are all, nothing more is sent."""

    def complete(self) -> None:
        """Confirm that the sink has the complete, verified contribution. Raises PartnerRefused if it is too late,
        PartnerLost if another stream has resumed it."""
        raise NotImplementedError

    def reject(self) -> None:
        """Discard the contribution because it is invalid. No stream may resume it."""

    async def result(self) -> ShardResult:
        """Wait for the result, until the owner's deadline. Raises PartnerRefused if there is none."""
        raise NotImplementedError

    def mark_delivered(self) -> None:
        """Record that the member has received the complete result."""

    def leave(self) -> None:
        """End the call, whatever its outcome, and free the slot. May be called again."""
        raise NotImplementedError


def check_named(named: Sequence[int], members: int) -> tuple[int, ...]:
    """Return the indices of contributors as a tuple. Raises ValueError unless they are strictly ascending and within
    the roster."""
    if any(not 0 <= index < members for index in named):
        raise ValueError("named")
    if any(one >= other for one, other in itertools.pairwise(named)):
        raise ValueError("order")
    return tuple(named)
