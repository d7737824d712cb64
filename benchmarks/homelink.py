"""A rate-limited link between two homes: a TCP relay with the rate of the slower line and a delay of half the
round-trip time.

Chunks in transit do not delay those behind them, unlike in `peer.lab.localswarm.relay`, where that is intended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CHUNK = 4096
BUFFER_S = 0.2
"""Seconds of data that a router buffers. A faster sender is stopped beyond that."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line between two homes. rate: bytes per second. delay_s: one-way delay, in each direction."""

    rate: float
    delay_s: float


@dataclass
class Link:
    """One direction of a link. `passed`: (time, bytes) of the chunks that entered, as the sender's router sees them."""

    line: Line
    passed: list[tuple[float, int]] = field(default_factory=list)
    _free_at: float = 0.0

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay bytes until the sender ends."""
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hand_over(due, writer))
            while chunk := await reader.read(CHUNK):
                await due.put((await self._serialized(len(chunk)), chunk))
            await due.put((0.0, b""))

    async def _serialized(self, nbytes: int) -> float:
        """Return when a chunk of `nbytes` leaves the line at the far end."""
        now = asyncio.get_running_loop().time()
        self.passed.append((now, nbytes))
        self._free_at = max(self._free_at, now) + nbytes / self.line.rate
        if (ahead := self._free_at - now - BUFFER_S) > 0:
            await asyncio.sleep(ahead)
        return self._free_at + self.line.delay_s

    async def _hand_over(self, due: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        while True:
            at, chunk = await due.get()
            if not chunk:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            await asyncio.sleep(max(0.0, at - now()))
            writer.write(chunk)


@asynccontextmanager
async def relay(target: str, there: Link, back: Link) -> AsyncIterator[str]:
    """Run the link. Yield the address to call instead of `target` (host:port). `there`: direction from callers. `back`:
    direction to callers."""
    host, _, port = target.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        try:
            with contextlib.suppress(OSError, ExceptionGroup):  # one end broke, so break the other
                async with asyncio.TaskGroup() as group:
                    group.create_task(there.pump(reader, far_writer))
                    group.create_task(back.pump(far_reader, writer))
        finally:
            writer.close()
            far_writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(both_ways(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=2 * CHUNK)
    try:
        where = server.sockets[0].getsockname()
        yield f"{where[0]}:{where[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks))


def rate_of(passed: list[tuple[float, int]], edge: float = 0.02) -> float:
    """Return the bytes per second while they flow, without the first and last share `edge` of all bytes."""
    total, held, inner = sum(nbytes for _, nbytes in passed), 0, list[tuple[float, int]]()
    for at, nbytes in passed:
        held += nbytes
        if edge * total <= held <= (1 - edge) * total:
            inner.append((at, nbytes))
    return sum(nbytes for _, nbytes in inner[1:]) / (inner[-1][0] - inner[0][0])


def fullest(passed: list[tuple[float, int]], window_s: float) -> int:
    """Return the most bytes in any window of `window_s` seconds."""
    most = held = first = 0
    for at, nbytes in passed:
        held += nbytes
        while passed[first][0] <= at - window_s:
            held -= passed[first][1]
            first += 1
        most = max(most, held)
    return most
