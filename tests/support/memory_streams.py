"""In-memory connections with bounded buffers, for tests in virtual time of code that passes bytes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from peer.lab.sim.virtual_clock import run_virtual
from peer.transport.relay.pipe import Stream

KERNEL = 2**16
"""Bytes that a connection holds in addition to the buffers of both ends, as kernels do."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection. Written bytes go to the other end while it reads, and otherwise wait here."""

    def __init__(self, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._out = bytearray()
        self._high = 2**16
        self._reading, self._full = True, False
        self._eof_due = self._eof_sent = self._closing = self._lost = False
        self.other: MemoryTransport = self

    def write(self, data: Any) -> None:
        assert not self._eof_due
        if self._lost:  # as uvloop does; asyncio's own loop only warns
            raise RuntimeError("unable to perform operation on a closed transport")
        self._out += data
        if len(self._out) > self._high + KERNEL and not self._full:
            self._full = True
            self._protocol.pause_writing()
        self._soon(self._flush)

    def write_eof(self) -> None:
        self._eof_due = True
        self._soon(self._flush)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._closing = True
        self._soon(self._flush)

    def abort(self) -> None:
        """Drop the connection: the other end is reset."""
        self._lose(None)
        self.other._lose(ConnectionResetError())

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 2**16 if high is None else high

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._soon(self.other._flush)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    @property
    def held(self) -> int:
        """Number of written bytes that the other end has not read."""
        return len(self._out)

    def _flush(self) -> None:
        if self._lost:
            return
        if self._out and self.other._reading and not self.other._closing:
            data, self._out = bytes(self._out[:KERNEL]), self._out[KERNEL:]
            self.other._protocol.data_received(data)
            if self._out:
                self._soon(self._flush)
        if self._out and self.other._closing:  # it answers with a reset
            self._lose(ConnectionResetError())
            return
        if self._full and len(self._out) <= self._high // 4:
            self._full = False
            self._protocol.resume_writing()
        if not self._out and (self._eof_due or self._closing) and not self._eof_sent:
            self._eof_sent = True
            self.other._protocol.eof_received()
        if not self._out and self._closing:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._out.clear()
            self._soon(self._protocol.connection_lost, error)

    @staticmethod
    def _soon(call: Any, *args: Any) -> None:
        asyncio.get_running_loop().call_soon(call, *args)


def transport_of(stream: Stream) -> MemoryTransport:
    found = stream.writer.transport
    assert isinstance(found, MemoryTransport)
    return found


def is_gone(stream: Stream) -> bool:
    """Return whether this end of a connection is closed for good."""
    return transport_of(stream)._lost


async def ends(stream: Stream) -> bool:
    """Read to the end of a connection, however it ends. Return whether no bytes came before."""
    with contextlib.suppress(ConnectionError):
        return await stream.reader.read() == b""
    return True


def connection(limit: int = 2**14) -> tuple[Stream, Stream]:
    """Return the two ends of a new connection."""
    loop = asyncio.get_running_loop()
    made = list[tuple[asyncio.StreamReader, asyncio.StreamReaderProtocol, MemoryTransport]]()
    for _ in range(2):
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        made.append((reader, protocol, MemoryTransport(protocol)))
    (_, _, one), (_, _, other) = made
    one.other, other.other = other, one
    for _, protocol, transport in made:
        protocol.connection_made(transport)
    first, second = (Stream.of(r, asyncio.StreamWriter(t, p, r, loop)) for r, p, t in made)
    _made.extend((first, second))
    return first, second


_made: list[Stream] = []


def run_streams(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time, and abort all connections that it made."""

    async def main() -> None:
        try:
            await test
        finally:
            while _made:
                _made.pop().abort()

    run_virtual(main())
