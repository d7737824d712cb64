"""The parts that hold what this peer believes of the others."""

from __future__ import annotations

from dataclasses import dataclass

from peer.membership.pair_receipts import PairReceipts
from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor


@dataclass(frozen=True, slots=True)
class MembershipParts:
    """One peer's own view of the swarm."""

    peer_table: PeerTable
    """Who is there; its `detector` says who answers."""
    reputation: Reputation
    slow_peers: SlowPeerMonitor
    receipts: PairReceipts | None = None
    """None: none are exchanged."""
