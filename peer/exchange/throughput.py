"""How fast a payload passes, seen from its source or sink, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peer.protocol.wire.payload import Source

LEAST_S = 1e-3
"""Seconds that a measurement takes at least: less says nothing about a rate."""
PART = 4
"""The first part fills buffers on the way; what passes behind it is measured, if there is as much of it."""


class Throughput:
    """Where a payload of `nbytes` was at which time (seconds)."""

    def __init__(self, nbytes: int, now: Callable[[], float]) -> None:
        self._nbytes = nbytes
        self._part = nbytes / PART
        self._now = now
        self._first: tuple[float, int] | None = None
        self._settled: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def note(self, upto: int) -> None:
        """So many bytes, from the beginning, have passed now."""
        self._last = at = self._now(), upto
        self._first = self._first or at
        if self._settled is None and upto >= self._part:
            self._settled = at

    @property
    def left(self) -> int:
        """Bytes that have not passed yet."""
        return self._nbytes - self._last[1]

    @property
    def first_at(self) -> float:
        """0: nothing has passed."""
        return self._first[0] if self._first else 0.0

    def rate(self) -> float:
        """Bytes per second; 0: too little has passed to tell."""
        since = self._first
        if self._settled is not None and self._last[1] - self._settled[1] >= self._part:
            since = self._settled
        seconds = self._last[0] - since[0] if since else 0.0
        return (self._last[1] - since[1]) / seconds if since and seconds >= LEAST_S else 0.0


@dataclass(frozen=True, slots=True)
class TransferLeft:
    """The rest of the transfers under way."""

    nbytes: int
    rate: float
    """Bytes per second of the slowest; 0: too little has passed to tell."""
    seconds: float
    """Until all of it has passed at these rates; 0 without a rate."""


class TransferMeter:
    """The transfers under way, for the one that asks how long they still take."""

    def __init__(self) -> None:
        self._under_way: list[Throughput] = []

    @contextmanager
    def watching(self, *throughput: Throughput) -> Iterator[None]:
        """Count these as under way within the context."""
        self._under_way += throughput
        try:
            yield
        finally:
            for one in throughput:
                self._under_way.remove(one)

    def left(self) -> TransferLeft | None:
        """Return the rest of all that is under way; None: nothing is."""
        rest = [one for one in self._under_way if one.left > 0]
        if not rest:
            return None
        rates = [rate for one in rest if (rate := one.rate()) > 0]
        nbytes, slowest = sum(one.left for one in rest), min(rates, default=0.0)
        seconds = max(one.left / (one.rate() or slowest) for one in rest) if slowest else 0.0
        return TransferLeft(nbytes, slowest, seconds)


class MeasuredSource:
    """A chunk is read when those before it have gone, or the last of them is going."""

    def __init__(self, source: Source, now: Callable[[], float]) -> None:
        self.source = source
        self.throughput = Throughput(source.nbytes, now)

    @property
    def nbytes(self) -> int:
        return self.source.nbytes

    @property
    def grain(self) -> int:
        return self.source.grain

    @property
    def most(self) -> int:
        return self.source.most

    def read(self, offset: int, size: int) -> bytes:
        self.throughput.note(offset)
        return self.source.read(offset, size)
