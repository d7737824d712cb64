"""Our own record, as the other parts of a peer see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.aio.events import Signal
from peer.protocol.messages import PeerRecord


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """Makes our record, and says when it has changed."""

    describe: Callable[[], PeerRecord]
    """The record of this moment."""
    peek: Callable[[], PeerRecord]
    """As `describe`, but its times may be old: we look at ourselves often."""
    changed: Signal = field(default_factory=Signal)
    """Rung when others should know soon of what is new in it."""
    relay_rate: Callable[[], float] = field(default=lambda: 0.0)
    """Bytes per second that our best relay passes on; 0: we have none."""
