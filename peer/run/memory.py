"""Checks whether a run fits into this machine's memory before anything is fetched. Later the system's out-of-memory
killer would end the process without an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.errors import MachineTooSmall
from peer.protocol.model.layout import TensorSpec
from peer.protocol.policy.upload_quota import size
from peer.run.activations import ACTIVATION_SHARE, TRAINER_BYTES, least_window_bytes
from peer.run.costs import DAEMON_BASE, cost_of, muon_elements
from peer.run.manifest import Manifest
from peer.run.resolve import resolve
from peer.run.sections import MOST_BUFFER_BYTES, CustomSection, TransformersSection

MIB = 2**20
MUON_SPARES = 4
"""Bytes per parameter of a matrix that Muon needs less than AdamW: one moment instead of two."""
BOOTSTRAP_BYTES = 8
"""Bytes per parameter of an operator's node while it makes the first state. Later its states lie on disk."""
TRAINER_BASE = 250 * MIB
"""Bytes of interpreter and libraries without a model."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Estimated need of main memory, in bytes."""

    daemon: int
    """The daemon's own memory, as `peer manifest show` prints it."""
    trainer: int
    shared: int
    """The arena, which daemon and trainer map."""

    @property
    def total(self) -> int:
        return self.daemon + self.trainer + self.shared


def memory_need(
    manifest: Manifest,
    tensors: Sequence[TensorSpec] | None = None,
    *,
    trains_here: bool = True,
    donates_only: bool = False,
    micro_batch: int = 1,
) -> MemoryNeed:
    """Return the peak memory of taking part.

    `micro_batch`: windows that pass through the model at once. The trainer fits this number to the free memory, so that
    room for one suffices. `trains_here`: False if the trainer's tensors lie on another device. `donates_only`: for an
    operator's node, which has no trainer. `tensors`: those of a foreign model. While they are not known its activations
    count as 0, and its buffers as the largest allowed size. A custom model counts as 0, because it lies in the user's
    own process."""
    parameters = manifest.model.parameters
    if donates_only:
        return MemoryNeed(DAEMON_BASE + BOOTSTRAP_BYTES * parameters, 0, 0)
    cost = cost_of(manifest.model, resolve(manifest.sync), tensors)
    if isinstance(manifest.model, CustomSection):
        return MemoryNeed(cost.daemon_bytes, 0, cost.arena_bytes)
    step = micro_batch * least_window_bytes(manifest.model, manifest.train.context, tensors)
    held = TRAINER_BYTES * parameters - MUON_SPARES * muon_elements(manifest.model, manifest.optimizer, tensors)
    if isinstance(manifest.model, TransformersSection):
        held += MOST_BUFFER_BYTES
    trainer = TRAINER_BASE + (held + step if trains_here else 0)
    return MemoryNeed(cost.daemon_bytes, trainer, cost.arena_bytes)


def activation_bytes(manifest: Manifest, free: int | None) -> int | None:
    """Return the bytes that the activations of an inner step may use, given `free` bytes measured before the trainer
    allocates its tensors. None: not known."""
    if free is None:
        return None
    return max(0, int(ACTIVATION_SHARE * (free - memory_need(manifest, micro_batch=0).total)))


def check_memory(manifest: Manifest, need: MemoryNeed, free: int | None) -> None:
    """Raise MachineTooSmall when `need` exceeds `free` bytes. `free` None: not known, and nothing is checked."""
    if free is None or need.total <= free:
        return
    parts = f"daemon {size(need.daemon)}"
    if need.trainer:
        parts += f", trainer {size(need.trainer)}"
    if need.shared:
        parts += f", shared {size(need.shared)}"
    raise MachineTooSmall(
        f"run {manifest.name!r} needs about {size(need.total)} of memory, estimated, for its "
        f"{manifest.model.parameters:,} parameters ({parts}). {size(free)} are free here",
        f"Free {size(need.total - free)} (close other programs, or raise the container's memory limit), "
        "or join a run with a smaller model.",
    )


def trains_in_main_memory(device: str) -> bool:
    """Return whether the trainer's tensors will lie in main memory. A guess by the driver's device files, because
    asking torch would load the driver into the daemon."""
    return device == "cpu" or (device == "auto" and not Path("/dev/nvidiactl").exists())


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process may still allocate: the system's available memory, or the rest of its control
    groups if that is less. None: neither is known (not Linux)."""
    told = [_available(root / "proc/meminfo"), *_left_in_groups(root)]
    return min((value for value in told if value is not None), default=None)


def _available(meminfo: Path) -> int | None:
    for line in _read(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_groups(root: Path) -> list[int | None]:
    """Return the memory left in this process's control group and in each group above it, for version 2 (`0::/path`) and
    version 1 (`4:memory:/path`)."""
    left = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file") if controllers else None
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            left.append(_left(folder, *(names or ("memory.max", "memory.current", "inactive_file"))))
    return left


def _left(group: Path, limit: str, usage: str, cache: str) -> int | None:
    """Return the limit of a group less its usage. Cached files that can be dropped count as free. None: the group has
    no limit."""
    most, used = _read(group / limit).strip(), _read(group / usage).strip()
    if not most.isdigit() or not used.isdigit() or int(most) >= 2**60:  # in version 1 a huge number means no limit
        return None
    facts = dict(line.split()[:2] for line in _read(group / "memory.stat").splitlines() if " " in line)
    return max(0, int(most) - int(used) + int(facts.get(cache, 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
