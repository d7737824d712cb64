"""The parts of a peer that hold what it knows about the others."""

from __future__ import annotations

from dataclasses import dataclass

from peer.membership.pair_receipts import PairReceipts
from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor


@dataclass(frozen=True, slots=True)
class MembershipParts:
    """One peer's view of the swarm, for the parts that choose and judge partners."""

    peer_table: PeerTable
    """The known peers. Its `detector` decides which of them no longer answer."""
    reputation: Reputation
    slow_peers: SlowPeerMonitor
    receipts: PairReceipts | None = None
    """Exchanges receipts of swaps; None: this run has none."""
