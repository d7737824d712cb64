"""Our own directory record: the one place where it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, Reach, RelayAddress, RunId, Status


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The part of our record that says who we are and where others reach us."""

    me: PeerId
    run_id: RunId
    endpoints: Callable[[], tuple[str, ...]]
    reachable: Callable[[], bool]
    mapped: Callable[[], bool] = field(default=lambda: False)
    """Whether others reach us through the router's port alone."""
    relays: Callable[[], tuple[RelayAddress, ...]] = field(default=tuple)
    """The relays that hold a place for us."""
    start: bytes = b""
    """Nonce of our process's start."""

    def reach(self) -> Reach:
        """Return how others can call us."""
        if self.reachable():
            return Reach.DIRECT
        return Reach.RELAYED if self.relays() else Reach.NONE


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
    reachable = address.reachable()
    return PeerRecord(
        peer_id=address.me,
        run_id=address.run_id,
        endpoints=address.endpoints(),
        reachable=reachable,
        wire_min=WIRE_VERSION,
        wire_max=WIRE_VERSION,
        round=round_,
        tokens_per_s=tokens_per_s,
        status=status,
        issued_at=now,
        expires_at=now + lifetime_s,
        mapped=address.mapped(),
        start=address.start,
        relays=() if reachable else address.relays(),
    )
