"""The bounds that one peer's end of the exchange keeps to, whatever run it takes part in."""

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
    """What a peer does for closed peers, and what it knows of relays."""

    rate: float | None = None
    """Bytes per second that are relayed for closed peers; 0: none are. None: see `default_rate`."""
    left: Callable[[PeerId, RelayFault], None] = lambda relay, fault: None
    """Told each relay that is left because it failed us, and why."""
    record_of: Callable[[PeerId], PeerRecord | None] = lambda peer: None
    """The newest record of a peer that is known. Another peer may name only one of a relay's endpoints, and a peer may
    change its relays in the middle of a transfer."""
    mapped: Callable[[], bool] = lambda: False
    """Whether others reach us through a port that our router opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportPolicy:
    """The caps, the quota and the reputation of one peer."""

    max_upload: float | None = None
    """Bytes per second; None: no cap."""
    max_download: float | None = None
    """Bytes per second; None: no cap."""
    quota: UploadBudget = field(default_factory=NoBudget)
    """No payload is sent that it does not hold."""
    reputation: CallerReputation = field(default_factory=NoReputation)
    """It is told what callers do wrong, and asked whom to turn away."""
    invitation: bytes = b""
    """Our own, shown to all we meet. Empty: we have none."""
    front: FrontLimits = field(default_factory=FrontLimits)
    """Places for callers."""
    relaying: RelayPolicy = field(default_factory=RelayPolicy)
    """What is relayed here, and how others reach us."""
    place: OwnPlace | None = None
    """The places where we are. None: every address may be dialled."""


OPEN = TransportPolicy()
"""No caps, no quota, everybody is welcome."""
