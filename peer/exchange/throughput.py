"""Measures how fast payloads pass, at their source or sink, for any transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peer.protocol.wire.payload import Source

LEAST_S = 1e-3
"""Least duration of a measurement, in seconds; a shorter one gives no meaningful rate."""
PART = 4
"""The first 1/PART of a payload only fills buffers on the way. The rate leaves it out once as many further bytes have
passed."""


class Throughput:
    """The progress of one payload of `nbytes` over time. `now`: returns seconds."""

    def __init__(self, nbytes: int, now: Callable[[], float]) -> None:
        self._nbytes = nbytes
        self._part = nbytes / PART
        self._now = now
        self._first: tuple[float, int] | None = None
        self._settled: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def note(self, upto: int) -> None:
        """Record that the first `upto` bytes have passed by now."""
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
        """Time at which the first bytes passed; 0: none have."""
        return self._first[0] if self._first else 0.0

    def rate(self) -> float:
        """Bytes per second; 0 while too little has passed to measure."""
        since = self._first
        if self._settled is not None and self._last[1] - self._settled[1] >= self._part:
            since = self._settled
        seconds = self._last[0] - since[0] if since else 0.0
        return (self._last[1] - since[1]) / seconds if since and seconds >= LEAST_S else 0.0


@dataclass(frozen=True, slots=True)
class TransferLeft:
    """The remaining bytes and time of the transfers under way."""

    nbytes: int
    rate: float
    """Bytes per second of the slowest transfer; 0: too little has passed to measure."""
    seconds: float
    """Seconds until all transfers end at these rates; 0 without a rate."""


class TransferMeter:
    """Collects the transfers under way, to estimate how long they still take."""

    def __init__(self) -> None:
        self._under_way: list[Throughput] = []

    @contextmanager
    def watching(self, *throughput: Throughput) -> Iterator[None]:
        """Count these payloads as under way within the context."""
        self._under_way += throughput
        try:
            yield
        finally:
            for one in throughput:
                self._under_way.remove(one)

    def left(self) -> TransferLeft | None:
        """Return what remains of all transfers under way; None if there are none."""
        rest = [one for one in self._under_way if one.left > 0]
        if not rest:
            return None
        rates = [rate for one in rest if (rate := one.rate()) > 0]
        nbytes, slowest = sum(one.left for one in rest), min(rates, default=0.0)
        seconds = max(one.left / (one.rate() or slowest) for one in rest) if slowest else 0.0
        return TransferLeft(nbytes, slowest, seconds)


class MeasuredSource:
    """A `Source` that records its progress. A chunk is read when all earlier chunks have been sent, or the last of them
    is being sent."""

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
