"""Forwards bytes between two streams, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

CHUNK = 2**14
"""Most bytes forwarded at a time, and so the memory that a relay uses per direction of a circuit."""
BUFFER = 2**16
"""Bytes buffered for a receiver before its sender is paused."""
LINGER_S = 5.0
"""Seconds in which the second direction has to end after the first."""

Turn = Callable[[int], Awaitable[None]]
"""Waits until this number of bytes may be forwarded."""


async def at_once(nbytes: int) -> None:
    """A `Turn` that never waits."""


@dataclass(slots=True)
class Stream:
    """A connection with its reader and writer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    def of(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stream:
        """Create a stream whose write buffer is limited to `BUFFER`."""
        writer.transport.set_write_buffer_limits(high=BUFFER)
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        """Send data if the connection is open. A broken connection is reported to its reader."""
        if not self.writer.is_closing():
            self.writer.write(data)

    def close(self) -> None:
        """Close the connection after the buffered data is sent, but within `LINGER_S`."""
        if not self.writer.is_closing():
            self.writer.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close the connection immediately."""
        self.writer.transport.abort()


async def join_streams(
    one: Stream, other: Stream, *, turn: Turn = at_once, chunk: int = CHUNK, idle_s: float, total_s: float
) -> None:
    """Forward bytes in both directions until both have ended, then close both connections.

    `turn` is awaited before each chunk of at most `chunk` bytes is sent; the streams are closed if it raises
    PartnerRefused. They are also closed after `idle_s` without a byte, and after `total_s`. A broken connection counts
    as closed. Nothing is raised except cancellation."""
    loop = asyncio.get_running_loop()
    until, last_at = loop.time() + total_s, loop.time()

    async def pump(source: Stream, target: Stream) -> None:
        nonlocal last_at
        with contextlib.suppress(OSError):
            while data := await source.reader.read(chunk):
                await turn(len(data))
                if target.writer.is_closing():
                    return  # the target broke, which the other pump notices
                target.writer.write(data)
                last_at = loop.time()
                await target.writer.drain()
        if not target.writer.is_closing():
            with contextlib.suppress(OSError):  # the target broke, which the other pump notices
                target.writer.write_eof()

    pumps = {asyncio.create_task(pump(one, other)), asyncio.create_task(pump(other, one))}
    waiting = pumps
    try:
        while waiting and (left := min(last_at + idle_s, until) - loop.time()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is not None for task in done):
                break
            if done:
                until = min(until, loop.time() + LINGER_S)
    finally:
        for task in pumps:
            task.cancel()
        one.close()
        other.close()
        await asyncio.gather(*pumps, return_exceptions=True)
