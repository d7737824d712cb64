"""Memory that the system gives when it is first written, and gets back with the last view.

Other memory that a daemon frees stays with the process (`peer.node.process`)."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

FEW = 2**18
"""Elements below which pages of their own are not worth a call of the system."""


def pages(nbytes: int) -> memoryview:
    """Return zeros. A page that is only read takes no memory."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the default is shared memory, which reading fills
    return memoryview(mmap.mmap(-1, max(1, nbytes), flags=private))[:nbytes]


def zeros(elements: int) -> Tensor:
    """Return flat fp32 zeros, as `pages` where there are many."""
    if elements < FEW:
        return torch.zeros(elements)
    return torch.frombuffer(pages(4 * elements), dtype=torch.float32)
