"""The accepting front: it accepts the public sockets, counts callers before TLS, and splices them to gRPC.

gRPC cannot count connections by address, and reads what a caller sends before anybody asks who it is. It therefore
listens on loopback only, where the front connects for each caller that has a place."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from peer.aio.servers import close_servers
from peer.protocol.endpoints import RELAYED
from peer.protocol.messages import PeerId, Way
from peer.protocol.relay.circuits import Circuit
from peer.transport.front.callers import CallerTable, FrontCaller, FrontLimits, seen_as
from peer.transport.front.splice import Splice
from peer.transport.relay.desk import IDLE_S, TOTAL_S, RelayDesk
from peer.transport.relay.pipe import CHUNK, Stream, join_streams
from peer.transport.relay.wire import MARK, PREAMBLE_BYTES, slip_of

CLOSE_S = 1.0
BACKLOG = 256
INSIDE = "127.0.0.1"


class _CircuitProtocol(asyncio.StreamReaderProtocol):
    """Reads an end of a circuit, and tells of its end."""

    def __init__(self, reader: asyncio.StreamReader, gone: Callable[[], None]) -> None:
        super().__init__(reader)
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone()


class AcceptingFront:
    """The front of one server. `open` it first, and `close` it in the end."""

    def __init__(
        self,
        callers: CallerTable,
        desk: RelayDesk | None = None,
        is_proven: Callable[[PeerId], bool] = lambda peer: False,
    ) -> None:
        """`desk`: takes the ends of relayed circuits; None: there are none. `is_proven`: whether a peer is proven to
        us."""
        self.limits: FrontLimits = callers.limits
        self._callers = callers
        self._desk = desk
        self._is_proven = is_proven
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

    async def stop_listening(self) -> None:
        """Accept nobody any more; the connections stay."""
        self._closed = True
        await close_servers(self._servers)

    async def close(self) -> None:
        """Drop all connections, and stop listening."""
        await self.stop_listening()
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

    def takes_over(self, splice: Splice, early: bytes) -> bool:
        """Take the ends of circuits out of gRPC's way, once their preamble is complete. A false slip ends the
        connection."""
        if self._desk is None or not early.startswith(MARK[: len(early)]):
            return False
        if len(early) >= PREAMBLE_BYTES:
            claimed = self._desk.claim(slip_of(early[:PREAMBLE_BYTES]))
            if claimed is None or splice.caller is None:
                splice.abort()
            else:
                self._begin_circuit(splice, *claimed, early[PREAMBLE_BYTES:])
        return True

    def _begin_circuit(self, splice: Splice, circuit: Circuit, caller: bool, rest: bytes) -> None:
        """Hand an end of a circuit to the desk. `caller`: whether it is the caller's end."""
        owner = circuit.caller.owner if caller else circuit.target.owner
        assert splice.caller is not None
        assert self._desk is not None
        self._callers.shown(splice.caller, owner, proven=self._is_proven(owner))
        transport, loop = splice.release(), asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK, loop=loop)
        protocol = _CircuitProtocol(reader, lambda: self.gone(splice))
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        reader.feed_data(rest)  # last, as a full reader pauses the connection
        stream = Stream.of(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        self._desk.arrived(circuit, stream, splice.caller.address, caller=caller)

    async def serve_circuit(self, stream: Stream, way: Way) -> None:
        """Let gRPC serve a caller that came over a circuit, to its end. It counts as one of the relay's network."""
        caller = FrontCaller(f"{RELAYED}{way.via}", stream.abort, way)
        if self._closed or not self._callers.enter(caller):
            stream.abort()
            return
        greeting = asyncio.get_running_loop().call_later(self.limits.greet_s, _abort_unless_known, caller)
        try:
            async with asyncio.timeout(self.limits.connect_s):
                inside = Stream.of(*await asyncio.open_connection(INSIDE, self._port))
            self._callers.connected(caller, inside.writer.get_extra_info("sockname")[1])
            await join_streams(stream, inside, idle_s=IDLE_S, total_s=TOTAL_S)
        except (TimeoutError, OSError):
            pass  # the server is closing, or has too many connections: the caller tries again
        finally:
            greeting.cancel()
            stream.abort()
            self._callers.leave(caller)

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


def _abort_unless_known(caller: FrontCaller) -> None:
    """End the connection of a caller that has proven no key in time."""
    if caller.key is None:
        caller.hang_up()
