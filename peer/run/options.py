"""What a volunteer chose for this peer."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from peer.clock.quiet_hours import QuietHours
from peer.guest.options import GuestOptions
from peer.protocol.messages import RunId
from peer.protocol.policy.upload_quota import UploadLimits
from peer.run.admission.invitation import Invitation
from peer.run.manifest import SignedManifest

ANY_HOST = "/ip4/0.0.0.0/tcp/0"


CACHE_DISK = 4 * 10**9
"""Bytes."""
ANY_HOST_6 = "/ip6/::/tcp/0"


def any_hosts() -> tuple[str, ...]:
    """Where to listen if nobody says: at every address, of IPv6 too where this machine has it."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return (ANY_HOST,)
    return (ANY_HOST, ANY_HOST_6)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What a person chose. Rates in bytes per second, None: no cap."""

    home: Path
    identity_path: Path | None = None
    initial_peers: tuple[str, ...] = ()
    host_maddrs: tuple[str, ...] = (ANY_HOST,)
    announce_maddrs: tuple[str, ...] = ()
    lan: bool = True
    """Whether to look for peers in our own network, and to be seen there."""
    port_mapping: bool = False
    """Whether the router may be asked to open a port. The command line says yes by default, a laboratory does not."""
    port: int = 0
    """Of the exchange service; 0: the one used last time, else any free one."""
    max_upload: float | None = None
    max_download: float | None = None
    relay: float | None = None
    """What is relayed for peers that nobody can dial; 0: nothing. None: a fifth of `max_upload`, or 1 MB/s without."""
    cache_disk: int = CACHE_DISK
    """Bytes of artifacts kept in the home, drafts included."""
    invitation: Invitation | None = None
    """Given on the command line; None: the one given at an earlier start, if any."""


@dataclass(frozen=True, kw_only=True)
class PeerOptions(NodeOptions):
    """What `peer join` was told, beyond the node's own options."""

    run_id: RunId
    manifest: SignedManifest | None = None
    """Given as a file; None: fetched from a peer."""
    data_dir: Path | None = None
    threads: int = 1
    device: str = "auto"
    precision: str = "auto"
    """Of the trainer: `auto`, `fp32` or `bf16`."""
    speed: float = 1.0
    """Part of the time the trainer may work, in (0, 1]."""
    step_seconds: float = 0.0
    """An inner step takes at least so long: for experiments with equal machines on one computer."""
    checkpoint_every_s: float = 60.0
    """At least; see `peer.state.checkpointer.SHARE`."""
    checkpoints_kept: int = 3
    wait_s: float = 120.0
    """How long to wait for a first answer from the run."""
    min_peers: int = 1
    micro_batch: int | None = None
    """Windows that go through the model at once; None: as many as fit into memory."""
    quiet_hours: QuietHours | None = None
    guest: GuestOptions = field(default_factory=GuestOptions)
    """How the trainer gives way to the machine's owner."""
    uploads: UploadLimits = field(default_factory=UploadLimits)
    """Bytes that may leave in a day and a month, local time."""
    resume: bool = False
    """End a pause that an earlier life of this peer was left in."""
    agreed: bool = False
    """The volunteer agreed to the run's contract beforehand."""
    summary: bool = True
    """Whether the run's nodes are told what this peer does, for the run's view."""
    attached: bool = False
    """A program of the user's makes the steps, with its own data."""
    trail: bool = False
    """Log which batches are trained on: see `peer.trainer.batch_log`."""
