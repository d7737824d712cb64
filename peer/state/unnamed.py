"""Allocates large buffers in unlinked files on the disk, so that they need no memory of this process."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch

from peer.outer.pages import pages


def unnamed(folder: Path | None, nbytes: int) -> memoryview:
    """Return a writable buffer of `nbytes` zeros, in an unlinked file in `folder`. None: in memory.

    The system frees the file's space once the last view of the buffer is released, also when the process is killed.
    Raises OSError, also when the disk is full."""
    if folder is None or nbytes == 0:
        return pages(nbytes)
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, nbytes)
        else:
            os.ftruncate(file.fileno(), nbytes)
        return memoryview(mmap.mmap(file.fileno(), nbytes))


def unnamed_values(folder: Path | None, elements: int) -> torch.Tensor:
    """Return a flat fp32 tensor of zeros in a buffer of `unnamed`. Raises OSError."""
    return torch.frombuffer(unnamed(folder, 4 * elements), dtype=torch.float32)
