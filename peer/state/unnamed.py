"""Large bytes that lie on the disk and not in this process's own memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch

from peer.outer.pages import pages


def unnamed(folder: Path | None, nbytes: int) -> memoryview:
    """Return `nbytes` zeros to be written, in a file of `folder` that has no name: the system removes it with the last
    view, and when the process is killed. `folder` None: in memory. Raises OSError, also for a full disk."""
    if folder is None or nbytes == 0:
        return pages(nbytes)
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, nbytes)
        else:
            os.ftruncate(file.fileno(), nbytes)
        return memoryview(mmap.mmap(file.fileno(), nbytes))


def unnamed_values(folder: Path | None, elements: int) -> torch.Tensor:
    """Return flat fp32 zeros that lie as `unnamed` bytes do. Raises OSError."""
    return torch.frombuffer(unnamed(folder, 4 * elements), dtype=torch.float32)
