"""Access to our own record, for the other parts of a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.aio.events import Signal
from peer.protocol.messages import PeerRecord


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """Makes our own record on request, and signals when it has changed."""

    describe: Callable[[], PeerRecord]
    """Returns the record as of now."""
    peek: Callable[[], PeerRecord]
    """As `describe`, but the times in the record may be old. Cheaper, for frequent reads."""
    changed: Signal = field(default_factory=Signal)
    """Set when the record has changed in a way that others should learn soon."""
    relay_rate: Callable[[], float] = field(default=lambda: 0.0)
    """Returns the bytes per second that our best relay forwards; 0: we have no relay."""
