"""The bounds that one peer's end of the exchange keeps to, whatever run it takes part in."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.ports.reputation import CallerReputation, NoReputation
from peer.transport.client.dialling import OwnPlace
from peer.transport.front.callers import FrontLimits
from peer.transport.wire.payload_stream import NoBudget, UploadBudget


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
    place: OwnPlace | None = None
    """The places where we are. None: every address may be dialled."""


OPEN = TransportPolicy()
"""No caps, no quota, everybody is welcome."""
