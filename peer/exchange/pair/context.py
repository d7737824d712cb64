"""The identity, services and trainer times that all partner searches of a peer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.ports.clock import Clock
from peer.ports.transport import SwapCalls
from peer.protocol.messages import PeerId, RunId
from peer.protocol.pair.address_quota import Vouched


@dataclass(frozen=True, slots=True)
class TrainerOutlook:
    """When trainers will stop for the next round, and whether ours has work to exchange."""

    stops_in: Callable[[], float] = lambda: 0.0
    """Returns the seconds until our trainer stops for the round, at the latest."""
    all_stop_in: Callable[[], float] = lambda: 0.0
    """Returns the seconds until every trainer that follows the rules has stopped for the round."""
    has_work: Callable[[], bool] = lambda: True
    """Returns whether our trainer has finished an inner step that is in no round yet."""


@dataclass(frozen=True, slots=True)
class PairContext:
    """The identity and the services that all partner searches of a peer share."""

    run_id: RunId
    me: PeerId
    transport: SwapCalls
    clock: Clock
    peer_table: PeerTable
    reputation: Reputation
    trainers: TrainerOutlook = field(default_factory=TrainerOutlook)
    vouched: Vouched = lambda record: ""
    """Returns the address block that a relay vouches for, given a closed peer's record; empty if there is none."""
