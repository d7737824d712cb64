"""Limits and preferences of one peer's transport, which do not depend on the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.ports.reputation import CallerReputation, NoReputation
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.relay.testimony import RelayFault
from peer.transport.client.dialling import OwnPlace
from peer.transport.front.callers import FrontLimits
from peer.transport.wire.payload_stream import NoBudget, UploadBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPolicy:
    """Settings for relaying and for reaching closed peers."""

    rate: float | None = None
    """Bytes per second relayed for closed peers; 0: nothing is relayed; None: see `default_rate`."""
    left: Callable[[PeerId, RelayFault], None] = lambda relay, fault: None
    """Called with each relay that is no longer used because it failed, and its fault."""
    record_of: Callable[[PeerId], PeerRecord | None] = lambda peer: None
    """Returns the newest known record of a peer. It is needed because another peer may name only one of a relay's
    endpoints, and because a peer may change its relays during a transfer."""
    mapped: Callable[[], bool] = lambda: False
    """Returns whether others reach us through a port that our router opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportPolicy:
    """Bandwidth caps, upload quota and reputation of one peer."""

    max_upload: float | None = None
    """Bytes per second; None: no cap."""
    max_download: float | None = None
    """Bytes per second; None: no cap."""
    quota: UploadBudget = field(default_factory=NoBudget)
    """Upload quota. A payload that exceeds it is not sent."""
    reputation: CallerReputation = field(default_factory=NoReputation)
    """Records the faults of callers and decides which callers are refused."""
    invitation: bytes = b""
    """Our own invitation, shown to every peer; empty: none."""
    front: FrontLimits = field(default_factory=FrontLimits)
    """Limits on callers."""
    relaying: RelayPolicy = field(default_factory=RelayPolicy)
    """Settings for relaying."""
    place: OwnPlace | None = None
    """Network location of this peer, from which follows what it may dial. None: it may dial every address."""


OPEN = TransportPolicy()
"""A policy without caps, quota or reputation."""
