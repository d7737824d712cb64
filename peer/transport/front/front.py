"""The accepting front: it accepts the public sockets, counts callers before TLS, and splices them to gRPC.

gRPC cannot count connections by address, and reads what a caller sends before anybody asks who it is. It therefore
listens on loopback only, where the front connects for each caller that has a place."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from peer.transport.front.callers import CallerTable, FrontCaller, FrontLimits, seen_as
from peer.transport.front.splice import Splice

CLOSE_S = 1.0
BACKLOG = 256
INSIDE = "127.0.0.1"


class AcceptingFront:
    """The front of one server. `open` it first, and `close` it in the end."""

    def __init__(self, callers: CallerTable) -> None:
        self.limits: FrontLimits = callers.limits
        self._callers = callers
        self._port = 0
        self._servers: list[asyncio.Server] = []
        self._splices: set[Splice] = set()
        self._empty = asyncio.Event()
        self._closed = False

    async def open(self, sockets: Sequence[socket.socket], port: int) -> None:
        """Accept callers from these sockets, which belong to the front from here on. `port`: that of gRPC on
        loopback."""
        self._port = port
        loop = asyncio.get_running_loop()
        for one in sockets:
            self._servers.append(await loop.create_server(self._splice, sock=one, backlog=BACKLOG))

    def stop_listening(self) -> None:
        """Accept nobody any more; the connections stay."""
        self._closed = True
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Drop all connections, and stop listening."""
        self.stop_listening()
        for splice in list(self._splices):
            splice.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._splices:
                    self._empty.clear()
                    await self._empty.wait()

    def _splice(self) -> asyncio.Protocol:
        return Splice(self).outer

    # -- asked by the splices ------------------------------------------------------------------------------------------

    def accepted(self, splice: Splice) -> bool:
        """Give the caller a place, and some time to prove a key. False: all places are taken."""
        self._splices.add(splice)
        assert splice.outer.transport is not None
        address = seen_as(splice.outer.transport.get_extra_info("peername"))
        if not address or self._closed:  # it has left already, or came as we closed
            return False
        caller = FrontCaller(address, splice.abort)
        if not self._callers.enter(caller):
            return False
        splice.serve(caller)
        splice.abort_after(self.limits.greet_s, unless=lambda: caller.key is not None)
        return True

    def connect(self, splice: Splice) -> asyncio.Task[None]:
        """Start the connection to gRPC."""
        return asyncio.create_task(self._connect(splice), name="front")

    async def _connect(self, splice: Splice) -> None:
        async with asyncio.timeout(self.limits.connect_s):
            await asyncio.get_running_loop().create_connection(lambda: splice.inner, INSIDE, self._port)

    def connected(self, splice: Splice) -> None:
        """Let gRPC's caller be known by our port inside."""
        assert splice.inner.transport is not None
        assert splice.caller is not None
        name = splice.inner.transport.get_extra_info("sockname")
        self._callers.connected(splice.caller, name[1] if name else 0)

    def gone(self, splice: Splice) -> None:
        """Free the caller's place."""
        if splice.caller is not None:
            self._callers.leave(splice.caller)
        self._splices.discard(splice)
        if not self._splices:
            self._empty.set()
