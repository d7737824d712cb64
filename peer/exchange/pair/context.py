"""What all searches for a partner share."""

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
    """What is known of trainers before the round at hand is due."""

    stops_in: Callable[[], float] = lambda: 0.0
    """When ours stops for the round: seconds from now, at the latest."""
    all_stop_in: Callable[[], float] = lambda: 0.0
    """The same of any trainer that keeps to the rules."""
    has_work: Callable[[], bool] = lambda: True
    """Whether ours has finished a step that no round has taken up yet."""


@dataclass(frozen=True, slots=True)
class PairContext:
    """What all matches of a peer share."""

    run_id: RunId
    me: PeerId
    transport: SwapCalls
    clock: Clock
    peer_table: PeerTable
    reputation: Reputation
    trainers: TrainerOutlook = field(default_factory=TrainerOutlook)
    vouched: Vouched = lambda record: ""
    """The address block that a closed peer counts for."""
