"""Makes this node's own directory record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, Reach, RelayAddress, RunId, Status


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The identity and addresses of this node, as in its own record."""

    me: PeerId
    run_id: RunId
    endpoints: Callable[[], tuple[str, ...]]
    reachable: Callable[[], bool]
    mapped: Callable[[], bool] = field(default=lambda: False)
    """Whether others reach this node only through a port that its router opened."""
    relays: Callable[[], tuple[RelayAddress, ...]] = field(default=tuple)
    """The relays that hold a place for this node."""
    start: bytes = b""
    """Nonce of the start of this process."""

    def reach(self) -> Reach:
        """Return how others can call this node."""
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
    """Make the own record, issued at `now` (run time) and valid for `lifetime_s`."""
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
