"""The dialling front: gRPC's client reaches a peer through it, and receives only frames that were checked.

A hostile server can harm gRPC's client as a hostile client can harm its server. So the front connects, verifies the
peer's key and terminates TLS; gRPC connects to a unix socket."""

from __future__ import annotations

import asyncio
import time

from peer.aio.servers import close_servers
from peer.protocol.endpoints import host_of, port_of
from peer.protocol.messages import PeerId
from peer.protocol.token_bucket import Rate
from peer.protocol.wire.http2 import AnswerWalker, FrameRates
from peer.transport.front.callers import FrontLimits
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.front.session import Session, SessionEnd
from peer.transport.front.tls_end import TlsEnd
from peer.transport.tls import client_context

CONNECT_S = 20.0
"""Timeout of connecting and of the TLS handshake in seconds, the same as gRPC's."""
CLOSE_S = 0.3
"""Seconds for sending what gRPC and the front still buffer, after the channels are closed."""
RATES = FrameRates(control=Rate(400.0, 800.0), small=Rate(400.0, 2000.0), data=Rate(0.0, 0.0))
"""What one server may send: twice what the calls of a peer require (`peer.transport.server.rate_limits.CALLS`)."""


class DiallingFront:
    """Connects gRPC's channels to one peer. `close` it after the channels."""

    def __init__(self, peer: PeerId) -> None:
        """Raises ValueError when the peer id contains no key."""
        self.limits = FrontLimits()
        self._tls, self._server_name = client_context(peer)
        self._listening: list[tuple[asyncio.Server, InnerSocket]] = []
        self._sessions = set[DialledSession]()
        self._closed = False

    def now(self) -> float:
        return time.monotonic()

    async def lead_to(self, address: str) -> str:
        """Return a unix address for gRPC. Each connection to it is forwarded to the IP address and port `address`, if
        the peer answers there. Raises OSError when no socket can be created."""
        inside = InnerSocket()
        try:
            listening = inside.listen()
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: DialledSession(self, address).inner, sock=listening
            )
        except BaseException:
            inside.close()
            raise
        self._listening.append((server, inside))
        return inside.address

    def tls(self) -> TlsEnd:
        """Return the TLS state of a new connection, which accepts only the peer's key."""
        return TlsEnd(self._tls, self._server_name)

    def began(self, session: DialledSession) -> bool:
        """Register a connection from gRPC. Return whether it is accepted."""
        self._sessions.add(session)
        return not self._closed

    def gone(self, session: DialledSession) -> None:
        """Unregister a session whose connections are both closed."""
        self._sessions.discard(session)

    async def close(self) -> None:
        """Accept no more connections. Established ones end when gRPC has closed its channels, or after `CLOSE_S`; all
        others are closed at once."""
        self._closed = True
        try:
            await close_servers([server for server, _ in self._listening])
            for session in list(self._sessions):
                if not session.stands:
                    session.abort()
            if ending := [session.closed for session in self._sessions if session.stands]:
                await asyncio.wait(ending, timeout=CLOSE_S)
        finally:
            for server, inside in self._listening:
                server.close()
                inside.close()
            for session in list(self._sessions):
                session.abort()


class DialledSession(Session):
    """A connection from gRPC to a peer. The peer is dialled when gRPC has connected, and gRPC waits for the
    handshake."""

    owner: DiallingFront

    def __init__(self, owner: DiallingFront, address: str) -> None:
        super().__init__(owner, AnswerWalker(RATES, owner.now()))
        self._address = address
        self._early = b""
        """Data that gRPC sent before the handshake was complete."""

    @property
    def stands(self) -> bool:
        """Whether the peer has proven its key and neither end has closed."""
        return self._tls is not None and self._tls.established and not self._over

    def made(self, end: SessionEnd) -> None:
        """Dial the peer when gRPC has connected; start TLS when the peer has."""
        super().made(end)
        if end is self.outer:
            if not self._over:
                self._tls = self.owner.tls()
                self._tls.begin()
                self.outer.send(self._tls.outgoing())
            return
        if not self.owner.began(self):
            self.abort()
            return
        self._connecting = asyncio.create_task(self._connect(), name="dialling")
        self._connecting.add_done_callback(self._connected)

    async def _connect(self) -> None:
        """Connect to the peer. Raises OSError or TimeoutError."""
        host, port = host_of(self._address), port_of(self._address)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().create_connection(lambda: self.outer, host, port)

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        if self._over or connecting.cancelled() or connecting.exception() is not None:
            self.abort()
        else:
            self.abort_after(CONNECT_S, unless=lambda: self.stands)
        self._end_if_closed()

    def _decrypt(self, data: memoryview) -> None:
        super()._decrypt(data)
        if self._early and self.stands:
            early, self._early = self._early, b""
            super()._from_grpc(memoryview(early))
            self.inner.resume("handshake")

    def _from_grpc(self, data: memoryview) -> None:
        if self.stands:
            super()._from_grpc(data)
        elif not self._over:
            self._early += data
            self.inner.pause("handshake")

    def _ended(self) -> None:
        self.owner.gone(self)
