"""The choices of a user for a node and for a volunteer's peer."""

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
"""Default of `cache_disk`, in bytes."""
ANY_HOST_6 = "/ip6/::/tcp/0"


def any_hosts() -> tuple[str, ...]:
    """Return the default listen addresses: all IPv4 addresses, and all IPv6 addresses if this machine has IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return (ANY_HOST,)
    return (ANY_HOST, ANY_HOST_6)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Options of any node's network side. Rates are in bytes per second, None for no cap."""

    home: Path
    identity_path: Path | None = None
    initial_peers: tuple[str, ...] = ()
    host_maddrs: tuple[str, ...] = (ANY_HOST,)
    announce_maddrs: tuple[str, ...] = ()
    lan: bool = True
    """Whether to find peers in the local network, and to be found there."""
    port_mapping: bool = False
    """Whether the router may be asked to open a port. The command line enables it by default, local swarms do not."""
    port: int = 0
    """Port of the exchange service. 0: that of the last start, or else any free one."""
    max_upload: float | None = None
    max_download: float | None = None
    relay: float | None = None
    """Rate of relaying for closed peers. 0: relay nothing. None: a fifth of `max_upload`, or 1 MB/s without a cap."""
    cache_disk: int = CACHE_DISK
    """Bytes of artifacts kept in the home, drafts included."""
    invitation: Invitation | None = None
    """Given on the command line. None: use the one that an earlier start stored, if any."""


@dataclass(frozen=True, kw_only=True)
class PeerOptions(NodeOptions):
    """Options of `peer join`, beyond those of its node."""

    run_id: RunId
    manifest: SignedManifest | None = None
    """Given as a file. None: it is fetched from a peer."""
    data_dir: Path | None = None
    threads: int = 1
    device: str = "auto"
    precision: str = "auto"
    """Precision of the trainer: `auto`, `fp32` or `bf16`."""
    speed: float = 1.0
    """Part of the time in which the trainer may work, in (0, 1]."""
    step_seconds: float = 0.0
    """Shortest duration of an inner step, for experiments that need equal machines on one computer."""
    checkpoint_every_s: float = 60.0
    """Shortest time between two checkpoints; see `peer.state.checkpointer.SHARE`."""
    checkpoints_kept: int = 3
    wait_s: float = 120.0
    """Seconds to wait for a first answer from the run."""
    min_peers: int = 1
    """-"""
    micro_batch: int | None = None
    """Windows that pass through the model at once. None: as many as fit into memory."""
    quiet_hours: QuietHours | None = None
    guest: GuestOptions = field(default_factory=GuestOptions)
    """How the trainer gives way to the machine's owner."""
    uploads: UploadLimits = field(default_factory=UploadLimits)
    """Bytes that may be uploaded per day and month, in local time."""
    resume: bool = False
    """End a pause that a former process of this peer left."""
    agreed: bool = False
    """Whether the volunteer agreed to the run's contract beforehand."""
    summary: bool = True
    """Whether to send summaries of this peer to the operator's nodes, for the run's view."""
    attached: bool = False
    """Whether the user's own program makes the steps, with its own data."""
    trail: bool = False
    """Whether to log the batches that are trained on: see `peer.trainer.batch_log`."""
