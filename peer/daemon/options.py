"""What a volunteer chose for this peer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from peer.daemon.node import NodeOptions
from peer.daemon.quiet import QuietHours
from peer.protocol.budget import Limits
from peer.protocol.messages import RunId
from peer.run.manifest import SignedManifest


@dataclass(frozen=True, kw_only=True)
class JoinOptions(NodeOptions):
    """What `peer join` was told, beyond the node's own options."""

    run_id: RunId
    manifest: SignedManifest | None = None
    """Given as a file; None: fetched from a peer."""
    data_dir: Path | None = None
    threads: int = 1
    device: str = "auto"
    speed: float = 1.0
    """Part of the time the trainer may work, in (0, 1]."""
    step_seconds: float = 0.0
    """An inner step takes at least so long: for experiments with equal machines on one computer."""
    checkpoint_every_s: float = 60.0
    """At least; see `peer.daemon.saving.SHARE`."""
    checkpoints_kept: int = 3
    wait_s: float = 120.0
    """How long to wait for a first answer from the run."""
    min_peers: int = 1
    micro_batch: int | None = None
    """Windows that go through the model at once; None: as many as fit into memory."""
    quiet_hours: QuietHours | None = None
    uploads: Limits = field(default_factory=Limits)
    """Bytes that may leave in a day and a month, local time."""
    resume: bool = False
    """End a pause that an earlier life of this peer was left in."""
    trail: bool = False
    """Log which batches are trained on: see `peer.trainer.trail`."""
