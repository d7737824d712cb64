"""An innocent address: it takes connections, counts them, and never says a word."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from peer.aio.servers import close_servers

MAX_HELD = 256
"""Connections that are kept open. Beyond it the oldest is closed."""


class SilentAddress:
    """The address, and how often it was dialled."""

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
        """Take a connection, and leave it without an answer."""
        self.connections += 1
        self._held.append(writer)
        if len(self._held) > MAX_HELD:
            self._held.popleft().transport.abort()

    def close(self) -> None:
        """Close what is held."""
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
