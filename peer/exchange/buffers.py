"""The memory that partners' values are decoded into. It belongs to the daemon's state."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Buffers:
    """Flat fp32 tensors, used again and again. There is one from the beginning, with all its pages; exchanges that
    overlap get one more each, `most` of them in all, and what was made stays.

    The caller has a buffer alone until the block ends. Nothing may read or write it after that, in whatever thread."""

    def __init__(self, elements: int, most: int) -> None:
        """elements: of the largest payload."""
        self._elements = elements
        self._most = most
        self._free = [torch.zeros(elements).fill_(0)]  # zeros alone would leave the pages to the first swap
        self.made = 1

    @contextmanager
    def acquire(self) -> Iterator[Tensor]:
        buffer = self._free.pop() if self._free else self._another()
        try:
            yield buffer
        finally:
            self._free.append(buffer)

    def _another(self) -> Tensor:
        assert self.made < self._most, "a fragment has one exchange at a time"
        self.made += 1
        return torch.empty(self._elements)


def pages(nbytes: int) -> memoryview:
    """Return zeros, in pages that the system gets back with the last view. Other memory that a daemon frees stays with
    the process (`peer.node.process`)."""
    return memoryview(mmap.mmap(-1, nbytes))
