"""The ports of one peer, together."""

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
    """Everything outside of one peer that its rounds talk to: real ones in a daemon, simulated ones in virtual time."""

    clock: Clock
    directory: Directory
    transport: Transport
    trainer: Trainer
    signer: Signer
    """Signs what a group agrees on."""
    offload: Offload
    """Runs codec and outer step off the event loop."""
    secret: Callable[[], int] = field(default=partial(secrets.randbits, 64))
    """Draws 64 bits that no other peer can know."""
