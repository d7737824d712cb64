"""Compares memory and disk of this machine with the need of a run, as `peer join` computes it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from peer.errors import HomeUnusable, MachineTooSmall
from peer.node.doctor.finding import DoctorFinding, failure, fine, unchecked, warning
from peer.node.doctor.home import nearest
from peer.observe.formatting import amount
from peer.protocol.model.layout import TensorSpec
from peer.run.costs import cost_of
from peer.run.files.artifact_folder import needed_artifacts
from peer.run.manifest import Manifest
from peer.run.memory import check_memory, memory_need, trains_in_main_memory
from peer.run.options import PeerOptions
from peer.run.resolve import resolve

LITTLE_DISK, LITTLE_MEMORY = 2 * 10**9, 2**30
"""Bytes of disk and of memory below which no useful run fits."""


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Largest need of disk space in the home, in bytes."""

    checkpoints: int
    files: int
    """The run's files."""
    exchange: int
    """The arena of daemon and trainer, and copies of the state for joiners."""

    @property
    def total(self) -> int:
        return self.checkpoints + self.files + self.exchange


def disk_need(manifest: Manifest, options: PeerOptions) -> DiskNeed:
    """Return the disk space that the run takes in the home."""
    from peer.state.checkpoint import checkpoint_bytes  # imported late, because torch may be broken
    from peer.state.snapshot import KEEP

    method, parameters = resolve(manifest.sync), manifest.model.parameters
    files = sum(ref.size for ref in needed_artifacts(manifest).values())
    copies = KEEP * 4 * parameters * (2 if method.one_state else 1)
    return DiskNeed(
        checkpoints=(options.checkpoints_kept + 1) * checkpoint_bytes(parameters),
        files=options.cache_disk if manifest.data.kind == "tokens" else files,
        exchange=cost_of(manifest.model, method).arena_bytes + copies,
    )


def free_disk(home: Path) -> int | None:
    """Return the free bytes on the disk of a home. None: the system does not report it."""
    try:
        return shutil.disk_usage(nearest(home)).free
    except OSError:
        return None


def held_disk(run_folder: Path, keep: int) -> int:
    """Return the bytes of checkpoints of earlier starts, which new ones replace."""
    from peer.state.checkpoint import CheckpointStore

    try:
        return CheckpointStore(run_folder / "checkpoints", keep).held_bytes() if run_folder.is_dir() else 0
    except OSError:
        return 0


def disk(home: Path, free: int | None, need: DiskNeed | None = None, held: int = 0) -> DoctorFinding:
    """Compare the free bytes on the home's disk with the need. `held`: part of the need that is on the disk already."""
    if free is None:
        return warning("disk", f"the system does not tell what is free at {home}", "Look with: df -h")
    told = f"{amount(free, 'bytes')} are free at {nearest(home)}"
    if need is None:
        if free < LITTLE_DISK:
            return warning("disk", told, f"Free some space there: {amount(LITTLE_DISK, 'bytes')} are a good start.")
        return fine("disk", told)
    parts = f"checkpoints {amount(need.checkpoints, 'bytes')}, files {amount(need.files, 'bytes')}, "
    parts += f"exchanges {amount(need.exchange, 'bytes')}"
    told += f", the run takes at most {amount(need.total, 'bytes')}, estimated ({parts})"
    if held:
        told += f", of which {amount(held, 'bytes')} are there"
    if (lack := need.total - held - free) > 0:
        fix = f"Free {amount(lack, 'bytes')} there, choose another --home, or keep fewer: --keep-checkpoints 1."
        return failure("disk", HomeUnusable(told, fix))
    return fine("disk", told)


def memory(
    free: int | None,
    manifest: Manifest | None = None,
    device: str = "auto",
    tensors: tuple[TensorSpec, ...] | None = None,
) -> DoctorFinding:
    """Compare the free memory with the need of daemon and trainer. `free` None: use what the system reports as
    available."""
    if free is None:
        try:
            free = int(psutil.virtual_memory().available)
        except OSError as error:  # a container without /proc
            return unchecked("memory", f"the system does not tell: {error.strerror}", "Give this program a /proc.")
    told = f"{amount(free, 'bytes')} are free"
    if manifest is None:
        if free < LITTLE_MEMORY:
            return warning("memory", told, "Close other programs, or raise the container's memory limit.")
        return fine("memory", told)
    need = memory_need(manifest, tensors, trains_here=trains_in_main_memory(device))
    try:
        check_memory(manifest, need, free)
    except MachineTooSmall as error:
        return failure("memory", error)
    return fine("memory", f"{told}, the run takes about {amount(need.total, 'bytes')}, estimated")
