"""The definition of a call, for every transport: gRPC between machines, and the simulator's network.

A call has one request and one reply. Its module contains the client function, which takes and returns values, the
server function, and a `Call` that names both messages. `peer.transport.calls.registry` finds the `Call`; servers then
serve it, count its bytes and limit its callers.

A call with several messages is a `StreamedCall`, which `peer.transport.server.listener` connects to its handler. Hello,
Reserve and Discard have modules here. Calls that carry payloads share their code, which is in `peer.transport.wire`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import Message

from peer.observe.control_bytes import Purpose
from peer.ports.handler import Handler
from peer.protocol.messages import PeerId, PeerRecord, Probed, Vouched
from peer.transport.relay.relay_server import RelayServer
from peer.transport.server.rate_limits import CallLimits
from peer.transport.server.state_uploads import StateUploads

SERVICE = "peer.v1.Exchange"

Q = TypeVar("Q", bound=Message)
"""A request message."""
A = TypeVar("A", bound=Message)
"""A reply message."""


class DialBackService(Protocol):
    """Interface of `peer.transport.server.dial_back.DialBack`, which the simulator replaces."""

    async def probe(self, caller: PeerId, host: str, endpoints: list[str], port: int) -> Probed: ...


class IndirectProbeService(Protocol):
    """Interface of `peer.transport.server.indirect_probe.IndirectProbe`, which the simulator replaces."""

    async def vouch(
        self, caller: PeerId, about: PeerId, record: PeerRecord | None, heard_ago_s: float | None
    ) -> Vouched: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallServices:
    """The parts of a peer that the server functions of calls use."""

    handler: Handler
    uploads: StateUploads
    limits: CallLimits
    dial_back: DialBackService
    indirect_probe: IndirectProbeService
    relay_server: RelayServer


@dataclass(frozen=True, slots=True)
class AuthenticatedCaller:
    """The peer that made a served call. It has proven its key and is within the limits on small calls."""

    peer: PeerId
    origin: str
    """Address from which it calls, in gRPC's notation."""
    block: str
    """Address block of `origin`."""
    proven: bool
    """Whether it is a proven peer."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """A call with one request and one reply. The caller presents a token that it got in a Hello.

    `serve` returns the reply. It raises PartnerRefused to refuse, and BadPayload for a request that no honest peer
    sends, which lowers the caller's reputation."""

    request: type[Q]
    """Type of the request. Its name is the call's name and "Request"."""
    reply: type[A]
    serve: Callable[[CallServices, AuthenticatedCaller, Q], Awaitable[A]]
    purpose: Purpose
    """Category under which its bytes are counted."""
    even_banned: bool = False
    """Whether banned peers may make this call."""
    waits: bool = False
    """Whether `serve` may wait for other peers beyond the caller's deadline. The simulator sets timers only for such
    calls."""

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


@dataclass(frozen=True, slots=True)
class StreamedCall:
    """A call with several messages. `purpose`: category under which its bytes are counted; None for calls that carry
    payloads or measure a line, which are not control traffic."""

    name: str
    purpose: Purpose | None = None

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


SWAP = StreamedCall("Swap")
FETCH_PIECE = StreamedCall("FetchPiece")
CONTRIBUTE = StreamedCall("Contribute")


class Channel(ABC):
    """The part of a transport that calls need."""

    @abstractmethod
    async def unary(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> A:
        """Make a call, after a Hello if one is due. Raises only PartnerLost, PartnerRefused or BadPayload."""

    @abstractmethod
    async def unary_aside(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> tuple[A, str]:
        """As `unary`, over a separate new connection. Return the reply and the endpoint that was called."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port on which this peer is called."""
