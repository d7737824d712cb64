"""A payload on the simulated wire that outlives its sender's part in the swap."""

from __future__ import annotations

from peer.exchange.throughput import MeasuredSource
from peer.protocol.wire.payload import Source


class LingeringSource:
    """What a side sends, for a receiver that is still reading when the sender has left and its params move on. (Over
    gRPC the sender stays, or the receiver notices that it left.)"""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read = 0
        self.nbytes, self.grain, self.most = source.nbytes, source.grain, source.most

    def read(self, offset: int, size: int) -> bytes:
        self._read = max(self._read, offset + size)
        return self._source.read(offset, size)

    def keep(self) -> None:
        """The sender leaves: what nobody has read yet lasts."""
        if self._read == self.nbytes:
            return
        unmeasured = self._source.source if isinstance(self._source, MeasuredSource) else self._source
        rest = unmeasured.read(self._read, self.nbytes - self._read)
        self._source = _Rest(rest, self._read)


class _Rest:
    """The end of a payload."""

    def __init__(self, data: bytes, begins: int) -> None:
        self._data = data
        self._begins = begins
        self.nbytes, self.grain, self.most = begins + len(data), 1, max(1, len(data))

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset - self._begins :][:size]
