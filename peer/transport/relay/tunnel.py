"""Loopback ports that lead to a closed peer over a relay. The front dials them like any address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from peer.aio.servers import close_servers
from peer.codes import Code
from peer.errors import ExchangeError, PartnerRefused
from peer.protocol.messages import PathKind, Way
from peer.transport.relay.pipe import Stream, join_streams

INSIDE = "127.0.0.1"
IDLE_S, TOTAL_S = 120.0, 3600.0
"""Limits of a relayed connection in seconds, the same as a relay's."""
OPEN_S = 20.0
"""Timeout of opening a circuit in seconds, longer than any caller waits."""

Open = Callable[[bool, float], Awaitable[tuple[Stream, Way]]]
"""Opens a circuit to the peer, called with (whether it is for bulk, bytes per second needed in each direction; 0:
unknown). Raises PartnerLost, PartnerRefused or BadPayload."""


class RelayTunnel:
    """Two loopback ports, for control and for bulk. Each connection to them opens a circuit. Call `start` first, and
    `close` at the end."""

    def __init__(self, open_circuit: Open) -> None:
        self._open = open_circuit
        self._servers: list[asyncio.Server] = []
        self._carried: dict[asyncio.Task[None], Stream] = {}
        self.way = Way(PathKind.RELAYED)
        """Path of the circuit that was opened last, for bulk if there was one."""
        self.trouble = ""
        """Why the last circuit could not be opened, for a person."""
        self.refused = False
        """Whether the relay refused the last circuit, which is no fault."""
        self.no_room = ""
        """Why the relay has no room for the current swap, according to its refusal; empty: it has not refused the
        swap."""
        self.asked_s: float | None = None
        """Seconds that the relay took for its last answer; None: no answer yet."""
        self._needs = 0.0
        self._closed = False

    async def start(self) -> tuple[str, str]:
        """Start listening. Return the addresses for control and for bulk. Raises OSError when no socket can be
        created."""
        return await self._listen(bulk=False), await self._listen(bulk=True)

    async def _listen(self, *, bulk: bool) -> str:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._closed:  # accepted while closing
                writer.transport.abort()
                return
            ours = Stream.of(reader, writer)
            task = asyncio.create_task(self._carry(ours, bulk=bulk), name="tunnel")
            self._carried[task] = ours
            task.add_done_callback(self._carried.pop)

        server = await asyncio.start_server(accepted, INSIDE, 0)
        self._servers.append(server)
        return f"{INSIDE}:{server.sockets[0].getsockname()[1]}"

    def expect(self, needs: float) -> None:
        """Set the rate that the next bulk circuit needs, in bytes per second in each direction."""
        self._needs, self.no_room = needs, ""

    def relay_answered(self, asked_s: float) -> None:
        """Record the seconds that the relay took to answer."""
        self.asked_s = asked_s

    async def _carry(self, ours: Stream, *, bulk: bool) -> None:
        needs = 0.0
        if bulk:
            needs, self._needs = self._needs, 0.0
        try:
            async with asyncio.timeout(OPEN_S):
                theirs, way = await self._open(bulk, needs)
        except (TimeoutError, ExchangeError) as error:
            self.trouble = str(error) or "it took too long"
            self.refused = isinstance(error, PartnerRefused)
            if isinstance(error, PartnerRefused) and error.code == Code.RELAY_BUSY:
                self.no_room = error.reason
            ours.abort()
            return
        except BaseException:
            ours.abort()
            raise
        if bulk or not self.way.why:
            self.way = way
        await join_streams(ours, theirs, idle_s=IDLE_S, total_s=TOTAL_S)

    async def close(self) -> None:
        """Close all circuits, and stop listening."""
        self._closed = True
        await close_servers(self._servers)
        carried = dict(self._carried)
        for task, ours in carried.items():
            task.cancel()
            ours.abort()  # needed for a task that was cancelled before it started
        await asyncio.gather(*carried, return_exceptions=True)
