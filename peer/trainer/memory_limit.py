"""A limit of the private memory of this process, for the time that a stranger's config is computed with.

The system's out-of-memory killer names no cause and may choose another program. Here the allocation itself fails."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from peer.errors import ModelError
from peer.observe.formatting import amount

NO_MEMORY = ("can't allocate memory", "bad_alloc", "not enough memory")
"""Parts of what torch's errors say when an allocation failed."""


@contextlib.contextmanager
def limited_memory(more_bytes: int, what: str) -> Iterator[None]:
    """Let this process take at most so many bytes of private memory more than it has, until the block ends.

    The limit is RLIMIT_DATA, which counts private writable mappings, so files that are mapped and the reservations of
    CUDA do not count. A lower limit that holds already stays. Where the system has no such limit, none is set. Raises
    ModelError, which names `what` took too much, in place of the error of the allocation that failed."""
    former = _lower_limit(more_bytes)
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        raise ModelError(
            f"{what} takes more memory than the {amount(more_bytes, 'bytes')} that it may take, or than is free here",
            "If more than that is free, the config is at fault: the operator has to name another one. Join another run "
            "until then.",
        ) from error
    finally:
        if former is not None:
            resource.setrlimit(resource.RLIMIT_DATA, former)


def _lower_limit(more_bytes: int) -> tuple[int, int] | None:
    """Return the limits that held before. None: the limit could not be set."""
    try:
        status = Path("/proc/self/status").read_text()
        used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = used + more_bytes
        lowest = min(limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))
    except (OSError, ValueError, StopIteration):
        return None
    return soft, hard
