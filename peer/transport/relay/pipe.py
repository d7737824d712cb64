"""Two byte streams of which each gets what the other receives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

CHUNK = 2**14
"""Most bytes passed on at a time. A relay holds few of them for each circuit."""
BUFFER = 2**16
"""Bytes held for a receiver before its sender has to wait."""
LINGER_S = 5.0
"""Seconds for the second direction to end after the first."""

Turn = Callable[[int], Awaitable[None]]
"""Waits until so many bytes may be passed on."""


async def at_once(nbytes: int) -> None:
    """Let bytes pass without a wait."""


@dataclass(slots=True)
class Stream:
    """One end: a connection with its reader and its writer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    def of(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stream:
        """Take a connection with a bounded buffer."""
        writer.transport.set_write_buffer_limits(high=BUFFER)
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        """Send, if the connection still stands. One that broke tells so to its reader."""
        if not self.writer.is_closing():
            self.writer.write(data)

    def close(self) -> None:
        """Close the connection once all is sent, for which it has `LINGER_S`."""
        if not self.writer.is_closing():
            self.writer.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Drop the connection at once."""
        self.writer.transport.abort()


async def join_streams(
    one: Stream, other: Stream, *, turn: Turn = at_once, chunk: int = CHUNK, idle_s: float, total_s: float
) -> None:
    """Pass bytes both ways until both directions have ended, and close both connections.

    `turn` waits before each chunk of at most `chunk` bytes; the pipe ends when it raises PartnerRefused. It also ends
    after `idle_s` without a byte, and after `total_s`. A broken connection ends it as a closed one does; nothing is
    raised but cancellation."""
    loop = asyncio.get_running_loop()
    until, last_at = loop.time() + total_s, loop.time()

    async def pump(source: Stream, target: Stream) -> None:
        nonlocal last_at
        with contextlib.suppress(OSError):
            while data := await source.reader.read(chunk):
                await turn(len(data))
                if target.writer.is_closing():
                    return  # it broke, and its own direction tells
                target.writer.write(data)
                last_at = loop.time()
                await target.writer.drain()
        if not target.writer.is_closing():
            with contextlib.suppress(OSError):  # it broke, and its own direction tells
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
