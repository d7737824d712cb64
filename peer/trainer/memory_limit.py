"""Limits this process's memory while it computes with a stranger's config.

The config decides what a model allocates when it is built and in each step, and the number of parameters does not show
all of it. Without a limit, the system's out-of-memory killer would end this process or another program without naming a
cause. With the limit, the allocation itself fails with an error."""

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
"""Bytes allowed in addition to the expected need, for the allocator's reserve and the copy for a checkpoint."""
LEAST_MARGIN = 2**30
"""Margin in bytes on a machine with too little free memory for `MARGIN`."""
OTHER_THREADS = 4
"""Threads that torch starts in addition to those of an operation, mostly for gradients."""
USUAL_STACK = 8 * 2**20
"""Bytes assumed for a thread's stack where the system sets no limit. glibc allocates less then."""
GPU_SHARE = 0.9
"""Share of an accelerator's free memory that is used. The rest is for fragmentation and other programs."""
NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "bad_alloc", "not enough memory")
"""Lower-case parts of the messages of torch's errors for a failed allocation in main memory."""
CONFIG_AT_FAULT = (
    "The run's config makes larger tensors than the size of its model shows, and only the operator can change that. "
    "Join another run until then. More may be taken where more memory is free."
)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on the memory that this process may allocate from now on."""

    nbytes: int
    """Bytes that may be allocated in addition to those that the process holds already."""
    reason: str
    """How the number was computed, for a person."""
    of_machine: bool = False
    """Whether the limit is low because little memory is free. A config that exceeds it is then not to blame."""

    @classmethod
    def of(cls, need: int, activations: int, free: int) -> MemoryLimit:
        """Compute the limit of a process that is expected to need `need` bytes, plus `activations` in a step.

        Because estimates may be too low, the limit is twice the need plus a margin. It does not exceed `free` bytes,
        except where the need itself would not fit."""
        needed = f"the {amount(need, 'bytes')} that it needs by estimate"
        wanted, least = 2 * need + activations + MARGIN, need + LEAST_MARGIN
        if wanted <= free:
            step, margin = amount(activations, "bytes"), amount(MARGIN, "bytes")
            return cls(wanted, f"twice {needed}, {step} for the values of a step, and a margin of {margin}")
        if least <= free:
            return cls(free, f"all that is free for it, with {needed}", of_machine=free < 2 * need)
        return cls(least, f"{needed} and {amount(LEAST_MARGIN, 'bytes')}, as no more is free here", of_machine=True)

    def error(self, what: str, where: str = "") -> PeerError:
        """Return the error for a process that exceeded the limit: MachineTooSmall, or ModelError if the config is at
        fault. `what`: the work that was done. `where`: the kind of memory followed by a space; empty: main memory."""
        most = amount(self.nbytes, "bytes")
        found = f"{what} takes more {where}memory than the {most} that it may take here: {self.reason}"
        return MachineTooSmall(found) if self.of_machine else ModelError(found, CONFIG_AT_FAULT)


@contextlib.contextmanager
def limited_memory(limit: MemoryLimit | None, what: str) -> Iterator[None]:
    """Limit the private memory of this process during the context. None: no limit.

    The limit is RLIMIT_DATA, which counts private writable mappings; shared file mappings and CUDA's reservations do
    not count. An existing lower limit stays, and a system without RLIMIT_DATA sets none. Raises `limit.error(what)` in
    place of the error of a failed allocation."""
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
    """Return whether the error is a failed allocation in main memory. torch has no exception type for that."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    texts = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in texts for part in NO_MEMORY)
    )


def _lower_limit(more_bytes: int) -> tuple[int, int] | None:
    """Lower RLIMIT_DATA to the memory in use plus `more_bytes`. Return the former limits; None: it could not be set."""
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
    """Return the bytes of stack of the threads that torch may still start.

    RLIMIT_DATA counts a stack in full as soon as the thread starts, and `ulimit -s` can make stacks large."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return (torch.get_num_threads() + OTHER_THREADS) * (USUAL_STACK if stack == resource.RLIM_INFINITY else stack)


@contextlib.contextmanager
def limited_gpu_memory(need: int, device: torch.device, what: str) -> Iterator[None]:
    """Limit torch's memory on an accelerator during the context, by the rule of `MemoryLimit.of`.

    The limit never exceeds the memory that is free now, so that a driver that could swap to main memory never does.
    Other devices are not limited. Raises as `limited_memory` does."""
    if device.type != "cuda":
        yield
        return
    free, whole = torch.cuda.mem_get_info(device)  # creates the CUDA context, whose memory torch does not count
    limit = MemoryLimit.of(need, int(GPU_SHARE * max(0, free - need)), free)
    most = min(whole, torch.cuda.memory_reserved(device) + limit.nbytes)
    torch.cuda.set_per_process_memory_fraction(most / whole, device)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise limit.error(what, "GPU ") from error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
