"""Reusable buffers for the decoded values of other peers. They count as memory of the daemon's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from peer.outer.pages import zeros


class Buffers:
    """A pool of flat fp32 tensors of the same size.

    One tensor exists from the start. Each exchange that overlaps another gets one more, up to `most`; tensors are kept
    for reuse. Their pages take memory only once written.

    Each borrower has exclusive use of its buffer until the `with` block ends. No thread may use the buffer after
    that."""

    def __init__(self, elements: int, most: int) -> None:
        """`elements`: number of elements of the largest payload. `most`: largest number of buffers."""
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
