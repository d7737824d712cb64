"""The memory that partners' values are decoded into. It belongs to the daemon's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from peer.outer.pages import zeros


class Buffers:
    """Flat fp32 tensors, used again and again. There is one from the beginning; exchanges that overlap get one more
    each, `most` of them in all, and what was made stays. A buffer takes memory from its first use on.

    The caller has a buffer alone until the block ends. Nothing may read or write it after that, in whatever thread."""

    def __init__(self, elements: int, most: int) -> None:
        """elements: of the largest payload."""
        self._elements = elements
        self._most = most
        self._free = [zeros(elements)]
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
        return zeros(self._elements)
