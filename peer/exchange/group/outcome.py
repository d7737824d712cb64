"""What came of the shards of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.protocol.group.receipts import ShardReceipt, Vouchers
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import Shard
from peer.protocol.messages import PeerId


@dataclass(slots=True)
class ShardOutcome:
    """One shard's part of a round."""

    result_digest: bytes = b""
    """Digest of the result (`peer.protocol.group.receipts`), whose values are in the mean; empty: there is none."""
    includes_us: bool = False
    sent: int = 0
    received: int = 0
    why: str = ""
    """There is no result."""
    contributors: tuple[int, ...] = ()
    """Who is named, as indices into the roster's members."""
    signature: bytes = b""
    """The owner's."""
    digest: bytes = b""
    """`came`, once it was checked that the signature is about it."""
    rms: float = 0.0
    """Root mean square of what came, once it was checked."""


def vouchers_of(
    roster: Roster, shards: Sequence[Shard], given: Sequence[ShardOutcome]
) -> tuple[Vouchers, tuple[PeerId, ...]]:
    """What the owners put their names to, as far as it checked; and who they are, by shard."""
    both = [(shard, part) for shard, part in zip(shards, given, strict=True) if part.digest]
    shown = tuple(ShardReceipt(shard.index, part.digest, part.signature) for shard, part in both)
    return Vouchers(roster.name() if shown else b"", shown), tuple(shard.owner for shard in shards)


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjacent spans as one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
