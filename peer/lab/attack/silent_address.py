"""An uninvolved address, to which an attacker points its records: it accepts and counts connections, and never
answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from peer.aio.servers import close_servers

MAX_HELD = 256
"""Most connections that stay open. Beyond that the oldest is closed."""


class SilentAddress:
    """A listening address that counts connections and never answers."""

    def __init__(self) -> None:
        self.connections = 0
        self._port = 0
        self._held: deque[asyncio.StreamWriter] = deque()

    @property
    def endpoint(self) -> str:
        """The address as `host:port`."""
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def set_port(self, port: int) -> None:
        self._port = port

    async def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection without ever answering."""
        self.connections += 1
        self._held.append(writer)
        if len(self._held) > MAX_HELD:
            self._held.popleft().transport.abort()

    def close(self) -> None:
        """Close all open connections."""
        for writer in self._held:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def silent_address() -> AsyncIterator[SilentAddress]:
    """Listen on loopback, at any port, until the block ends."""
    silent = SilentAddress()
    server = await asyncio.start_server(silent.take, "127.0.0.1", 0)
    silent.set_port(server.sockets[0].getsockname()[1])
    try:
        yield silent
    finally:
        await close_servers([server])
        silent.close()
