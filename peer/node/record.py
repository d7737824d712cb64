"""Our own directory record: the one place where it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The part of our record that says who we are and where others reach us."""

    me: PeerId
    run_id: RunId
    endpoints: Callable[[], tuple[str, ...]]
    reachable: Callable[[], bool]


def describe_self(
    address: PeerAddress,
    *,
    status: Status,
    round_: int,
    tokens_per_s: float,
    now: float,
    lifetime_s: float,
) -> PeerRecord:
    """Make our record."""
    return PeerRecord(
        peer_id=address.me,
        run_id=address.run_id,
        endpoints=address.endpoints(),
        reachable=address.reachable(),
        wire_min=WIRE_VERSION,
        wire_max=WIRE_VERSION,
        round=round_,
        tokens_per_s=tokens_per_s,
        status=status,
        issued_at=now,
        expires_at=now + lifetime_s,
    )
