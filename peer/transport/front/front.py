"""The accepting front: accepts callers on the public sockets, and forwards only checked frames to gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import cast

from peer.aio.servers import close_servers
from peer.protocol.endpoints import RELAYED
from peer.protocol.messages import PeerId, Way
from peer.protocol.relay.circuits import Circuit
from peer.transport.front.callers import RATES, CallerTable, FrontCaller, FrontLimits, seen_as
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.front.session import FrontSession
from peer.transport.front.tls_end import TlsEnd
from peer.transport.relay.pipe import CHUNK, Stream
from peer.transport.relay.relay_server import RelayServer
from peer.transport.relay.wire import MARK, PREAMBLE_BYTES, decode_preamble
from peer.transport.tls import RenewedLeaf

CLOSE_S = 1.0
"""Longest wait in seconds for connections to close."""
BACKLOG = 256
RETRY_S = 0.02
"""Seconds between attempts to connect to gRPC while its backlog is full."""
HELD_EACH = 2**17
"""Bytes that each caller occupies in addition to its buffers once it is connected to gRPC: the connection state of
OpenSSL and gRPC (`benchmarks/front.py`)."""


class _CircuitProtocol(asyncio.StreamReaderProtocol):
    """Reads an end of a circuit, and calls `gone` when it closes."""

    def __init__(self, reader: asyncio.StreamReader, gone: Callable[[], None]) -> None:
        super().__init__(reader)
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone()


class AcceptingFront:
    """The front of one server. `open` it first, and `close` it at the end."""

    def __init__(
        self,
        callers: CallerTable,
        leaf: RenewedLeaf,
        relay_server: RelayServer | None = None,
        is_proven: Callable[[PeerId], bool] = lambda peer: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leaf`: TLS context presented to callers. `relay_server` takes the ends of relayed circuits; None: nothing is
        relayed. `is_proven`: whether a peer is proven to us. `now`: seconds from any origin."""
        self.limits: FrontLimits = callers.limits
        self.rates = RATES
        self.now = now
        self._callers = callers
        self._leaf = leaf
        self._relay_server = relay_server
        self._is_proven = is_proven
        self._inside: InnerSocket | None = None
        self._servers: list[asyncio.Server] = []
        self._sessions: set[FrontSession] = set()
        self._empty = asyncio.Event()
        self._closed = False

    async def open(self, sockets: Sequence[socket.socket], inside: InnerSocket) -> None:
        """Accept callers on these sockets, which the front then owns. `inside`: the socket on which gRPC listens."""
        self._inside = inside
        loop = asyncio.get_running_loop()
        for one in sockets:
            self._servers.append(await loop.create_server(self._session, sock=one, backlog=BACKLOG))

    async def stop_listening(self) -> None:
        """Accept no more callers. Existing connections stay open."""
        self._closed = True
        await close_servers(self._servers)

    async def close(self) -> None:
        """Close all connections, and stop listening."""
        await self.stop_listening()
        for session in list(self._sessions):
            session.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._sessions:
                    self._empty.clear()
                    await self._empty.wait()

    def _session(self) -> asyncio.BaseProtocol:
        return FrontSession(self).outer

    # -- called by the sessions ----------------------------------------------------------------------------------------

    def accepted(self, session: FrontSession) -> bool:
        """Give the caller a place, and limit the time until it proves a key. Return False if all places are taken."""
        self._sessions.add(session)
        if session.caller is None:
            assert session.outer.transport is not None
            address = seen_as(session.outer.transport.get_extra_info("peername"))
            if not address:  # it has already disconnected
                return False
            session.serve(FrontCaller(address, session.abort, changed=session.rank_changed))
        caller = session.caller
        assert caller is not None
        if self._closed or not self._callers.enter(caller, self.now()):
            return False
        session.abort_after(self.limits.greet_s, unless=lambda: caller.key is not None)
        return True

    def take_circuit(self, session: FrontSession, early: bytes) -> bool:
        """Return whether a connection is an end of a circuit. When its preamble is complete, pass it to the relay
        server; an invalid slip closes the connection."""
        if self._relay_server is None or session.caller is None or session.caller.way != Way():
            return False  # circuits cannot be nested
        if not early.startswith(MARK[: len(early)]):
            return False
        if len(early) >= PREAMBLE_BYTES:
            claimed = self._relay_server.claim(decode_preamble(early[:PREAMBLE_BYTES]))
            if claimed is None:
                session.abort()
            else:
                self._begin_circuit(session, *claimed, early[PREAMBLE_BYTES:])
        return True

    def _begin_circuit(self, session: FrontSession, circuit: Circuit, caller: bool, rest: bytes) -> None:
        """Pass an end of a circuit to the relay server. `caller`: whether it is the caller's end."""
        owner = circuit.caller_slip.owner if caller else circuit.target_slip.owner
        assert session.caller is not None
        assert self._relay_server is not None
        self._callers.record_key(session.caller, owner, proven=self._is_proven(owner))
        transport, loop = session.release(), asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK, loop=loop)
        protocol = _CircuitProtocol(reader, lambda: self.gone(session))
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        reader.feed_data(rest)  # must come last, because a full reader pauses the connection
        stream = Stream.of(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        self._relay_server.arrived(circuit, stream, session.caller.address, caller=caller)

    async def serve_circuit(self, stream: Stream, way: Way) -> None:
        """Serve a caller that came over a circuit, until it disconnects. It counts towards the relay's network."""
        session = FrontSession(self)
        session.serve(FrontCaller(f"{RELAYED}{way.via}", session.abort, way, session.rank_changed))
        transport = cast(asyncio.Transport, stream.writer.transport)
        transport.pause_reading()
        stream.reader.feed_eof()
        session.serve_transport(transport, await stream.reader.read())
        try:
            await session.closed
        finally:
            session.abort()

    def handshake_wait_s(self, session: FrontSession) -> float:
        """Return the seconds that a caller waits for its TLS handshake; infinity: too many of its block wait."""
        assert session.caller is not None
        return self._callers.handshake_wait_s(session.caller, self.now())

    def tls(self) -> TlsEnd:
        """Return the TLS state of a new connection."""
        return TlsEnd(self._leaf.context())

    def charge_frames(self, session: FrontSession, frames: float) -> bool:
        """Charge frames to the caller's block. Return whether the caller may continue."""
        assert session.caller is not None
        return self._callers.charge_frames(session.caller, frames, self.now())

    def record_held(self, session: FrontSession, nbytes: int) -> None:
        """Record the bytes that a caller occupies here, or recently passed to gRPC."""
        assert session.caller is not None
        self._callers.record_held(session.caller, HELD_EACH + nbytes)

    def connect(self, session: FrontSession) -> asyncio.Task[None]:
        """Start connecting to gRPC."""
        return asyncio.create_task(self._connect(session), name="front")

    async def _connect(self, session: FrontSession) -> None:
        assert self._inside is not None
        assert session.caller is not None
        async with asyncio.timeout(self.limits.connect_s):
            while True:
                try:
                    ours, name = self._inside.connect()
                    break
                except BlockingIOError:
                    await asyncio.sleep(RETRY_S)
            self._callers.connected(session.caller, name)
            await asyncio.get_running_loop().create_unix_connection(lambda: session.inner, sock=ours)

    def gone(self, session: FrontSession) -> None:
        """Free the caller's place."""
        if session.caller is not None:
            self._callers.leave(session.caller)
        self._sessions.discard(session)
        if not self._sessions:
            self._empty.set()
