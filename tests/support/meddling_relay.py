"""A box in front of a relay's port that reads, garbles, drops, holds or swaps the bytes of circuits, and leaves
everything else unchanged. Shows what a malicious relay could do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from peer.aio.servers import close_servers
from peer.transport.relay.wire import MARK, PREAMBLE_BYTES

CHUNK = 2**14
DELAY_S = 2.0
AGREED = 200
"""Bytes at the beginning of a circuit that pass unchanged: addresses, and what both ends agree on."""
Alter = Callable[["Strand", bytes], bytes]
"""Returns the bytes to pass instead of some bytes of one direction of a circuit."""


class Strand:
    """One direction of one connection to the relay. `outward`: towards the relay.

    A circuit has two connections to the relay, so a bit that is flipped on both is unchanged in the end."""

    def __init__(self, number: int, target: asyncio.StreamWriter, *, outward: bool) -> None:
        self.number = number
        self.target = target
        self.outward = outward
        self.passed = 0
        """Bytes received so far, including the preamble."""


class Meddler:
    """The box. circuits: bytes received on circuits so far. seen: all bytes that passed, if `listens`."""

    def __init__(self, *, listens: bool = False) -> None:
        self.circuits = 0
        self.ends = 0
        """Number of connections that were ends of circuits."""
        self.seen = bytearray()
        self._listens = listens
        self._alter: Alter | None = None
        self._due: tuple[int, Alter] | None = None
        self._holding = asyncio.Event()
        self._strands: list[Strand] = []

    def begin(self, alter: Alter, after: int = 0) -> None:
        """Start to alter bytes once circuits have carried `after` more bytes."""
        self._due = self.circuits + after, alter

    async def relay(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection to its end."""
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        try:
            begin = await reader.read(CHUNK)
            while begin and MARK.startswith(begin[: len(MARK)]) and len(begin) < PREAMBLE_BYTES:
                begin += await reader.read(CHUNK)
            circuit = begin.startswith(MARK)
            self.ends += circuit
            there, back = Strand(self.ends, far_writer, outward=True), Strand(self.ends, writer, outward=False)
            if circuit:
                self._strands += [there, back]
            with contextlib.suppress(OSError, ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(begin, reader, there, circuit=circuit))
                    group.create_task(self._pump(b"", far_reader, back, circuit=circuit))
        finally:
            self._strands = [one for one in self._strands if one.target not in (writer, far_writer)]
            for one in (writer, far_writer):
                one.transport.abort()

    async def _pump(self, data: bytes, reader: asyncio.StreamReader, strand: Strand, *, circuit: bool) -> None:
        data = data or await reader.read(CHUNK)
        while data:
            if self._listens:
                self.seen += data
            if circuit:
                data = self._meddled(strand, data)
            if data:
                strand.target.write(data)
                await strand.target.drain()
            data = await reader.read(CHUNK)
        raise ConnectionResetError  # half a connection is none

    def _meddled(self, strand: Strand, data: bytes) -> bytes:
        strand.passed += len(data)
        self.circuits += len(data)
        if self._due is not None and self.circuits >= self._due[0]:
            self._alter, self._due = self._due[1], None
        return data if self._alter is None or strand.passed <= AGREED else self._alter(strand, data)

    # -- ways to meddle ------------------------------------------------------------------------------------------------

    def flips_a_bit(self, strand: Strand, data: bytes) -> bytes:
        if not strand.outward:
            return data
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    def drops_some(self, strand: Strand, data: bytes) -> bytes:
        return data[: len(data) // 2]

    def passes_nothing_on(self, strand: Strand, data: bytes) -> bytes:
        return b""

    def delays(self, strand: Strand, data: bytes) -> bytes:
        if not strand.outward:
            return data

        def passes() -> None:
            if not strand.target.is_closing():
                strand.target.write(data)

        asyncio.get_running_loop().call_later(DELAY_S, passes)
        return b""

    def swaps_streams(self, strand: Strand, data: bytes) -> bytes:
        """Send the bytes of one end as if another end had sent them."""
        if not strand.outward:
            return data
        others = [
            one for one in self._strands if one.number != strand.number and one.outward and not one.target.is_closing()
        ]
        if not others:
            return self.flips_a_bit(strand, data)
        others[0].target.write(data)
        return b""


@asynccontextmanager
async def before(target: str, meddler: Meddler) -> AsyncIterator[str]:
    """Run the box. Yield the address to call instead of `target` (host:port)."""
    tasks: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_served(meddler, target, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # A task that is cancelled before its first step never comes to its `finally`.
        task.add_done_callback(lambda _: writer.transport.abort())

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await close_servers([server])
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _served(meddler: Meddler, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            await meddler.relay(target, reader, writer)
    finally:
        writer.transport.abort()
