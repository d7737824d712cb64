"""A limit of the memory of this process, for the time that a stranger's config is computed with.

A config decides what a model allocates, in its making and in each step, and no count of parameters shows it all. The
system's out-of-memory killer names no cause and may choose another program. Here the allocation itself fails."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.errors import MachineTooSmall, ModelError, PeerError
from peer.observe.formatting import amount

MARGIN = 2 * 2**30
"""Bytes beyond what is expected: what the allocator keeps, and the copy for a checkpoint."""
LEAST_MARGIN = 2**30
"""The same where less than that is free."""
OTHER_THREADS = 4
"""Threads that torch starts beside those of an operation, for gradients above all."""
USUAL_STACK = 8 * 2**20
"""Bytes of a thread's stack where the system sets no limit of stacks. glibc takes less then."""
GPU_SHARE = 0.9
"""Share of an accelerator's free memory that is used. The rest is for fragmentation and other programs."""
NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "bad_alloc", "not enough memory")
"""Parts of what torch's errors say when an allocation in main memory failed, in small letters."""
CONFIG_AT_FAULT = (
    "The run's config makes larger tensors than the size of its model shows, and only the operator can change that. "
    "Join another run until then. More may be taken where more memory is free."
)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that this process may take beyond those that it holds, and where the number comes from, for a person."""

    nbytes: int
    reason: str
    of_machine: bool = False
    """Whether so little is free that a config with more than this need not be at fault."""

    @classmethod
    def of(cls, need: int, activations: int, free: int) -> MemoryLimit:
        """Limit a process that is expected to take `need` bytes, and may take `activations` for the values of a step.

        The limit is generous to estimates that are too low: twice the need, and a margin. It is below `free`, but
        never so low that the need itself would not fit."""
        needed = f"the {amount(need, 'bytes')} that it needs by estimate"
        wanted, least = 2 * need + activations + MARGIN, need + LEAST_MARGIN
        if wanted <= free:
            step, margin = amount(activations, "bytes"), amount(MARGIN, "bytes")
            return cls(wanted, f"twice {needed}, {step} for the values of a step, and a margin of {margin}")
        if least <= free:
            return cls(free, f"all that is free for it, with {needed}", of_machine=free < 2 * need)
        return cls(least, f"{needed} and {amount(LEAST_MARGIN, 'bytes')}, as no more is free here", of_machine=True)

    def error(self, what: str, where: str = "") -> PeerError:
        """Return the error of a process that took more. `where`: of which memory, followed by a space."""
        most = amount(self.nbytes, "bytes")
        found = f"{what} takes more {where}memory than the {most} that it may take here: {self.reason}"
        return MachineTooSmall(found) if self.of_machine else ModelError(found, CONFIG_AT_FAULT)


@contextlib.contextmanager
def limited_memory(limit: MemoryLimit | None, what: str) -> Iterator[None]:
    """Let this process take at most so much private memory more than it has, until the block ends. None: no limit.

    The limit is RLIMIT_DATA, which counts private writable mappings, so files that are mapped and the reservations of
    CUDA do not count. A lower limit that holds already stays. Where the system has no such limit, none is set. Raises
    ModelError or MachineTooSmall, which name `what` took too much, in place of the error of the allocation."""
    if limit is None:
        yield
        return
    former = _lower_limit(limit.nbytes)
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        raise limit.error(what) from error
    finally:
        if former is not None:
            resource.setrlimit(resource.RLIMIT_DATA, former)


def is_memory_error(error: BaseException) -> bool:
    """Return whether an allocation in main memory failed. torch has no type of its own for that."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    texts = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in texts for part in NO_MEMORY)
    )


def _lower_limit(more_bytes: int) -> tuple[int, int] | None:
    """Return the limits that held before. None: the limit could not be set."""
    try:
        status = Path("/proc/self/status").read_text()
        used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = used + more_bytes + _stack_bytes()
        lowest = min(limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))
    except (OSError, ValueError, StopIteration):
        return None
    return soft, hard


def _stack_bytes() -> int:
    """Return the bytes of the stacks of threads that torch may start yet. They count as soon as a thread starts,
    though hardly any of them are touched, and `ulimit -s` makes them large."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return (torch.get_num_threads() + OTHER_THREADS) * (USUAL_STACK if stack == resource.RLIM_INFINITY else stack)


@contextlib.contextmanager
def limited_gpu_memory(need: int, device: torch.device, what: str) -> Iterator[None]:
    """Let torch take at most so much of an accelerator's memory until the block ends, by the rule of `MemoryLimit.of`.

    Nothing is limited on another device. The memory that is free now is the most: a driver that moves what does not fit
    to main memory has no reason to do so then. Raises as `limited_memory`."""
    if device.type != "cuda":
        yield
        return
    free, whole = torch.cuda.mem_get_info(device)  # makes the context, which is no part of what torch counts
    limit = MemoryLimit.of(need, int(GPU_SHARE * max(0, free - need)), free)
    most = min(whole, torch.cuda.memory_reserved(device) + limit.nbytes)
    torch.cuda.set_per_process_memory_fraction(most / whole, device)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise limit.error(what, "GPU ") from error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
