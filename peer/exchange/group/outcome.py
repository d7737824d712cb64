"""The outcomes of a round's shards, and the vouchers and the transfer report that are computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.protocol.group.plausibility import MeasuredResult
from peer.protocol.group.receipts import ShardReceipt, Vouchers
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import Shard
from peer.protocol.messages import DIRECT, PathKind, PeerId, SwapReport, Way


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What a member got for one shard of a round."""

    result_digest: bytes = b""
    """Digest of the result (`peer.protocol.group.receipts`) whose values were decoded into the mean; empty: there is no
    result."""
    includes_us: bool = False
    sent: int = 0
    """Bytes sent; `received`: bytes received."""
    received: int = 0
    why: str = ""
    """Why there is no result; empty if there is one."""
    way: Way = DIRECT
    """The network path to the owner."""
    contributors: tuple[int, ...] = ()
    """The contributors that the result names, as indices into the roster's members."""
    signature: bytes = b""
    """The owner's signature of the result."""
    measured: MeasuredResult | None = None
    """Measures of the result against our contribution; None before the check (`ShardExchange.check`)."""


def vouchers_of(
    roster: Roster, shards: Sequence[Shard], given: Sequence[ShardOutcome]
) -> tuple[Vouchers, tuple[PeerId, ...]]:
    """Return the checked results with their owners' signatures, and the owner of each shard."""
    both = [(shard, part) for shard, part in zip(shards, given, strict=True) if part.measured is not None]
    shown = tuple(ShardReceipt(shard.index, part.result_digest, part.signature) for shard, part in both)
    return Vouchers(roster.name() if shown else b"", shown), tuple(shard.owner for shard in shards)


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent spans. `spans`: ascending."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def report_of(given: Sequence[ShardOutcome], seconds: float, *, complete: bool) -> SwapReport:
    """Return the transfer report of a round. Its path is the least direct of all shards."""
    paths = list(PathKind)
    way = max((part.way for part in given), key=lambda way: paths.index(way.path), default=DIRECT)
    sent, received = sum(part.sent for part in given), sum(part.received for part in given)
    return SwapReport(sent, received, seconds, complete, way=way)
