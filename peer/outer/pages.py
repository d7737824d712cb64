"""Memory from anonymous pages: allocated when first written, and returned to the system when the last view is gone.

Other memory that a daemon frees stays with the process (`peer.node.process`)."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

FEW = 2**18
"""Below this number of elements, separate pages are not worth a system call."""


def pages(nbytes: int) -> memoryview:
    """Return zeroed memory of `nbytes` bytes. Pages that are only read use no memory."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the default is shared memory, which reading fills
    return memoryview(mmap.mmap(-1, max(1, nbytes), flags=private))[:nbytes]


def zeros(elements: int) -> Tensor:
    """Return flat fp32 zeros. Large tensors use `pages`."""
    if elements < FEW:
        return torch.zeros(elements)
    return torch.frombuffer(pages(4 * elements), dtype=torch.float32)
