"""The ports and facts that every stage of a join uses."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from peer.ports.clock import Clock
from peer.ports.console import Say
from peer.ports.directory import Directory
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, RunId
from peer.run.home import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinContext:
    """The ports of one peer while it joins a run."""

    run_id: RunId
    me: PeerId
    directory: Directory
    transport: Transport
    clock: Clock
    say: Say
    folder: RunFolder | None = None
    """The run's folder in the home. None: nothing is written to disk."""
    rng: random.Random = field(default_factory=random.Random)
