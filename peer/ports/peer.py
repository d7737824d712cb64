"""All ports of one peer as one value."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from peer.aio.threads import Offload
from peer.ports.clock import Clock
from peer.ports.directory import Directory
from peer.ports.signer import Signer
from peer.ports.trainer import Trainer
from peer.ports.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPorts:
    """Everything outside of a peer that its rounds talk to. A daemon passes real implementations, the simulator those
    in virtual time."""

    clock: Clock
    directory: Directory
    transport: Transport
    trainer: Trainer
    signer: Signer
    """Signs rosters and results of groups."""
    offload: Offload
    """Runs codec and outer step outside the event loop."""
    secret: Callable[[], int] = field(default=partial(secrets.randbits, 64))
    """Draw 64 bits that no other peer can predict."""
