"""What a call is, whatever carries it: gRPC between machines, or the simulator's network.

A call has one request and one reply. Its module holds all of it: the function that asks, which takes and returns
values, the function that serves, and a `Call` that names both messages. `peer.transport.calls.registry` finds it there;
servers then offer it, count its bytes and limit its callers.

A call of several messages is a `StreamedCall`, and `peer.transport.server.listener` says what serves it. Hello, Reserve
and Discard have their modules here. Those that carry payloads share too much for that, in `peer.transport.wire`."""

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
A = TypeVar("A", bound=Message)


class DialBackService(Protocol):
    """As `peer.transport.server.dial_back.DialBack`. The simulator has another one."""

    async def probe(self, caller: PeerId, host: str, endpoints: list[str], port: int) -> Probed: ...


class IndirectProbeService(Protocol):
    """As `peer.transport.server.indirect_probe.IndirectProbe`. The simulator has another one."""

    async def vouch(
        self, caller: PeerId, about: PeerId, record: PeerRecord | None, heard_ago_s: float | None
    ) -> Vouched: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallServices:
    """What served calls answer from."""

    handler: Handler
    uploads: StateUploads
    limits: CallLimits
    dial_back: DialBackService
    indirect_probe: IndirectProbeService
    relay_server: RelayServer


@dataclass(frozen=True, slots=True)
class AuthenticatedCaller:
    """The peer that made a served call. Its key is proven, and it is within the limits of small calls."""

    peer: PeerId
    origin: str
    """Where it calls from, as gRPC writes addresses."""
    block: str
    """The address block of that."""
    proven: bool


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """A call with one request and one reply. Its caller shows a token, which a Hello gave it.

    `serve` returns the reply. It raises PartnerRefused to refuse, and BadPayload for what no honest peer sends, which
    costs the caller some of its standing."""

    request: type[Q]
    """Its name and "Request"."""
    reply: type[A]
    serve: Callable[[CallServices, AuthenticatedCaller, Q], Awaitable[A]]
    purpose: Purpose
    """What its bytes are counted as."""
    even_banned: bool = False
    """Whether a peer that the operator keeps out may make it."""
    waits: bool = False
    """Whether its deadline passes now and then, as `serve` waits for others. The simulator sets a timer for such calls
    alone."""

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


@dataclass(frozen=True, slots=True)
class StreamedCall:
    """A call of several messages. `purpose`: what its bytes are counted as; None: it carries payloads, or measures a
    line."""

    name: str
    purpose: Purpose | None = None

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


SWAP = StreamedCall("Swap")
FETCH_PIECE = StreamedCall("FetchPiece")
CONTRIBUTE = StreamedCall("Contribute")


class Channel(ABC):
    """One peer's end of a transport, as far as calls need it."""

    @abstractmethod
    async def unary(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> A:
        """Make a call, after a Hello where one is due. Raises PartnerLost, PartnerRefused or BadPayload alone."""

    @abstractmethod
    async def unary_aside(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> tuple[A, str]:
        """As `unary`, over a connection of its own. Return the reply, and the endpoint that was called."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port at which we are called."""
