"""Admission of callers. Every served call passes here before its body is read.

Checks the token, the caller's reputation and the rate limits, and records callers that it turns away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.ports.reputation import CallerReputation, NoReputation
from peer.protocol.messages import PeerId
from peer.transport.calls.call import A, AuthenticatedCaller, Call, CallServices, Q
from peer.transport.front.callers import CallerTable
from peer.transport.server.call_places import CallPlaces
from peer.transport.server.rate_limits import Caller, CallLimits, block_of_network, network_of
from peer.transport.server.read_slots import ReadSlots
from peer.transport.server.tokens import TokenTable
from peer.transport.wire.refusals import TOKEN_KEY, Context, refuse, served

STEP_TIMEOUT_S = 5.0
"""Timeout in seconds for reading one message that is due at once, or for the caller to read one."""
MAX_REQUEST = 16 * 1024
"""Largest message in bytes, except payload frames. A Hello with a record has about 1 KiB."""
HELLO_S = 12.0
"""Timeout of a complete Hello in seconds, including the caller's reading of our answers."""
HELLO_PLACES, HELLOS_RESERVED = 72, 8
"""Hellos served at once, and how many of these places are reserved for connections of proven peers. The number is
somewhat more than one address may have at once."""
CALL_PLACES, CALLS_RESERVED = 176, 32
"""Other calls served at once, and how many of these places are reserved for proven peers. Together with the Hellos they
are fewer than gRPC accepts, because gRPC rejects callers regardless of their network."""


class Admission:
    """Admits callers of one server.

    `now`: seconds since the epoch. `ban_reason` returns why the operator has banned a peer, for a person; empty: it is
    not banned. `reputation` records faults and decides whom to refuse. `callers`: table of the front through which all
    callers come; None: there is no front, and gRPC sees the callers' addresses itself."""

    def __init__(
        self,
        now: Callable[[], float],
        ban_reason: Callable[[PeerId], str] = lambda peer: "",
        reputation: CallerReputation | None = None,
        callers: CallerTable | None = None,
    ) -> None:
        self.now = now
        self.tokens = TokenTable()
        self.limits = CallLimits(now)
        self.read_slots = ReadSlots()
        self._hello_places = CallPlaces(HELLO_PLACES, HELLOS_RESERVED, "Hellos")
        self._call_places = CallPlaces(CALL_PLACES, CALLS_RESERVED, "calls")
        self.reputation = reputation or NoReputation()
        self._ban_reason = ban_reason
        self._callers = callers

    async def origin(self, context: Context) -> str:
        """Return the caller's address in gRPC's notation.

        Refuses a call that did not come through the front, because its caller could claim any address."""
        origin = self._origin(context)
        return origin or await refuse(context, Code.BUSY, "this connection has lost its place; call again")

    def greeted(self, context: Context, peer: PeerId) -> None:
        """Record that the caller has proven its key, so that its connection keeps its place in the front."""
        if self._callers is not None:
            self._callers.greeted(context.peer(), peer, proven=self.reputation.is_proven(peer))

    def _origin(self, context: Context) -> str:
        return context.peer() if self._callers is None else self._callers.origin(context.peer()) or ""

    @contextlib.asynccontextmanager
    async def greeting(self, context: Context) -> AsyncIterator[None]:
        """Guard a Hello: enforce the limits of its address, and bound its time."""
        address = network_of(await self.origin(context))
        if why := self.limits.enter_hello(address):
            await self.turn_away(context, Code.LIMIT, why)
        try:
            proven = self._callers is not None and self._callers.is_proven(context.peer())
            async with self._hello_places.held(block_of_network(address), proven=proven, timeout_s=HELLO_S):
                yield
        except TimeoutError:
            await self.turn_away(context, Code.TIMEOUT, "Hello took too long")
        except PartnerRefused as busy:  # not the fault of this caller
            await refuse(context, busy.code, busy.reason, busy.eta_s)
        finally:
            self.limits.leave_hello(address)

    @contextlib.asynccontextmanager
    async def admitted(self, context: Context, *, even_banned: bool = False) -> AsyncIterator[Caller]:
        """Guard any other call. Yields the caller if it has a token, is not banned, is in good standing, and is within
        the limits; refuses the call otherwise."""
        peer = await self.owner(context)
        if (out := self.exclusion(peer, even_banned=even_banned)) is not None:
            await refuse(context, *out)
        caller = Caller(network_of(await self.origin(context)), peer)
        self.greeted(context, peer)
        if why := self.limits.enter_call(caller):
            await self.turn_away(context, Code.LIMIT, why, peer)
        try:
            async with self._call_places.held(block_of_network(caller.address), proven=self.reputation.is_proven(peer)):
                with contextlib.nullcontext() if self._callers is None else self._callers.calling(context.peer()):
                    yield caller
        except PartnerRefused as busy:
            await refuse(context, busy.code, busy.reason, busy.eta_s)
        finally:
            self.limits.leave_call(caller)

    def exclusion(self, peer: PeerId, *, even_banned: bool = False) -> tuple[Code, str] | None:
        """Return why this peer is not served, as a code and a reason; None: it is served. Long-running calls check this
        repeatedly."""
        if not even_banned and (why := self._ban_reason(peer)):
            return Code.BANNED, why
        why = self.reputation.exclusion_reason(peer)
        return (Code.STANDING, why) if why else None

    async def owner(self, context: Context) -> PeerId:
        """Return the owner of the call's token. Refuses a call without a valid one."""
        for key, value in context.invocation_metadata() or ():
            if key == TOKEN_KEY and isinstance(value, bytes):
                if (owner := self.tokens.owner(value, self.now())) is not None:
                    return owner
                if self.tokens.was_issued(value):  # not a fault: tokens of honest callers expire
                    await refuse(context, Code.NO_TOKEN, "your token has run out; say Hello again")
        address = network_of(self._origin(context))
        self.reputation.refused(
            address, Code.NO_TOKEN, "called without a token that was given here (since the last start)"
        )
        return await refuse(context, Code.NO_TOKEN, "say Hello first")

    async def turn_away(self, context: Context, code: Code, reason: str, peer: PeerId | None = None) -> NoReturn:
        """Refuse a caller for a fault of its own, and record the fault. `peer`: the caller, once it has proven its
        key."""
        if peer is not None:
            self.reputation.penalize(peer, code, reason)
        else:
            address = network_of(self._origin(context))
            self.limits.blame(address)
            self.reputation.refused(address, code, reason)
        await refuse(context, code, reason)

    async def message(self, context: Context, peer: PeerId | None = None) -> Any:
        """Read the caller's next message; `grpc.aio.EOF` when there is none."""
        try:
            return await self.read_slots.read(context.read, STEP_TIMEOUT_S)
        except PartnerRefused as busy:
            await refuse(context, busy.code, busy.reason, busy.eta_s)
        except TimeoutError:
            await self.turn_away(context, Code.TIMEOUT, "the next message did not come", peer)

    async def request(self, context: Context, peer: PeerId | None = None) -> bytes:
        """Read the caller's next message where a small one is due; empty when there is none."""
        raw = await self.message(context, peer)
        if isinstance(raw, bytes) and len(raw) > MAX_REQUEST:
            reason = f"a request of {len(raw)} bytes; at most {MAX_REQUEST} are read"
            await self.turn_away(context, Code.REQUEST, reason, peer)
        return raw if isinstance(raw, bytes) else b""

    def unary(self, call: Call[Q, A], services: CallServices) -> Any:
        """Create the gRPC handler of a call with one request and one reply.

        gRPC's own handler is not used, because it reads the request before the caller is admitted, and waits for it
        without a limit."""

        async def serve(_: Any, context: Context) -> None:
            async with self.admitted(context, even_banned=call.even_banned) as caller:
                assert caller.peer is not None
                origin, block = self._origin(context), block_of_network(caller.address)
                raw = await self.request(context, caller.peer)
                try:
                    request = call.request.FromString(raw)
                except DecodeError:
                    await self.turn_away(context, Code.REQUEST, "the request cannot be read", caller.peer)
                authenticated = AuthenticatedCaller(caller.peer, origin, block, self.reputation.is_proven(caller.peer))
                try:
                    reply = await call.serve(services, authenticated, request)
                except BadPayload as error:
                    await self.turn_away(context, error.code, error.reason, caller.peer)
                except PartnerRefused as error:
                    await refuse(context, error.code, error.reason, error.eta_s)
                try:
                    async with asyncio.timeout(STEP_TIMEOUT_S):
                        await context.write(reply.SerializeToString())
                except TimeoutError:
                    await self.turn_away(context, Code.TIMEOUT, "the reply was not taken", caller.peer)

        return served(serve)
