"""The server side of swaps and of pieces of state, and the services behind the small calls (`peer.transport.calls`).

Hello is the only call without a token. In all others the token identifies the caller."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.ports.handler import Handler
from peer.ports.reputation import CallerReputation
from peer.protocol.messages import (
    ARTIFACT_PREFIX,
    FRAGMENT_PREFIX,
    PIECE_BYTES,
    SHARD_PREFIX,
    PeerId,
)
from peer.protocol.wire.frames import Kind, PayloadWriter, largest_for, pack
from peer.protocol.wire.payload import BytesSource
from peer.transport.calls.call import CallServices
from peer.transport.calls.hello import Handshake
from peer.transport.client.dial_check import checked_dial, dial_check
from peer.transport.client.dialling import Dialler
from peer.transport.config import TransportConfig
from peer.transport.front.callers import CallerTable
from peer.transport.relay.relay_server import RelayServer
from peer.transport.server.admission import Admission
from peer.transport.server.call_places import AGAIN_S, CallPlaces
from peer.transport.server.dial_back import DialBack
from peer.transport.server.indirect_probe import CallOverRelays, IndirectProbe
from peer.transport.server.rate_limits import Caller, block_of_network
from peer.transport.server.state_uploads import StateUploads
from peer.transport.server.swap_rendezvous import SwapRendezvous, SwapWays
from peer.transport.wire.payload_stream import Caps, Throttle, send_payload
from peer.transport.wire.refusals import Context, refuse
from peer.transport.wire.resumption import A_PIECE
from peer.transport.wire.validation import piece_request_of
from peer.v1 import exchange_pb2 as pb

MAX_PIECES, PIECES_RESERVED = 8, 2
"""Pieces sent at once, and how many of these places are reserved for proven peers. Strangers have two more places than
one address may use."""
MAX_ARTIFACTS_AT_ONCE, ARTIFACTS_RESERVED = 5, 1
"""Maximum pieces of artifacts among the `MAX_PIECES`, so that joiners that fetch state still find a place, and how many
of these are reserved for proven peers."""
NO_SNAPSHOT = "that snapshot is no longer kept; ask for the state again"
NO_ARTIFACT = "that artifact is not given here, or no longer; ask another peer"
COPY_S = 10.0
"""Seconds that a call waits until a fragment's state is copied. A copy that takes longer is finished for later
calls."""
TAKE_S = 30.0
"""Minimum seconds in which a joiner has to read a piece."""
SLOWEST_JOINER = 8_000.0
"""Bytes per second. A joiner that reads a piece more slowly loses its place."""


class ExchangeService:
    """The methods of the gRPC service for swaps and pieces. Every wait for a caller has a deadline, and every number
    from a caller has a bound."""

    def __init__(
        self,
        config: TransportConfig,
        handler: Handler,
        caps: Caps,
        reputation: CallerReputation | None = None,
        callers: CallerTable | None = None,
        dialler: Dialler | None = None,
        ways: SwapWays | None = None,
        relayed: CallOverRelays | None = None,
        relay_server: RelayServer | None = None,
    ) -> None:
        dialler = dialler or Dialler()
        self._config = config
        self._handler = handler
        self._caps = caps
        self.admission = Admission(config.now, config.ban_reason, reputation, callers)
        self.handshake = Handshake(config, self.admission, handler, dialler.record_call)
        self.swaps = SwapRendezvous(handler, self.admission, caps, ways)
        self._piece_places = CallPlaces(MAX_PIECES, PIECES_RESERVED, "pieces")
        self._artifact_places = CallPlaces(MAX_ARTIFACTS_AT_ONCE, ARTIFACTS_RESERVED, "pieces of artifacts")
        self._uploads = StateUploads(caps)
        self.call_services = CallServices(
            handler=handler,
            uploads=self._uploads,
            limits=self.admission.limits,
            dial_back=DialBack(dial_check, config.now),
            indirect_probe=IndirectProbe(partial(checked_dial, dialler), config.now, relayed),
            relay_server=relay_server or RelayServer(None, time.monotonic),
        )
        """The services behind the small calls."""

    async def fetch_piece(self, _: Any, context: Context) -> None:
        async with self.admission.admitted(context) as caller:
            await self._fetch_piece(caller, context)

    async def _fetch_piece(self, caller: Caller, context: Context) -> None:
        raw = await self.admission.request(context, caller.peer)
        try:
            request = piece_request_of(raw)
        except BadPayload as error:
            await self.admission.turn_away(context, error.code, error.reason, caller.peer)
        if request.snapshot.startswith(ARTIFACT_PREFIX):
            await self._send_artifact(caller, request, context)
            return
        if request.snapshot.startswith((FRAGMENT_PREFIX, SHARD_PREFIX)):
            await self._send_fragment(caller, request, context)
            return
        data = await self._piece(caller, request, context)
        assert caller.peer is not None
        block, proven = block_of_network(caller.address), self._is_proven(caller.peer)
        if busy := self._uploads.busy_reason(caller.peer, block, proven=proven):
            await refuse(context, Code.BUSY, *busy)
        await self._may_enter(caller, len(data), context)
        giving = self._uploads.sending_to(caller.peer, len(data) - request.offset, block, proven=proven)
        async with self._place(caller, context):
            with giving:
                await self._send(caller, data, request, self._uploads.throttle_for(proven=proven), context)

    async def _send_fragment(self, caller: Caller, request: pb.PieceRequest, context: Context) -> None:
        """Send part of a fragment's state, or of a shard's averaged result. A place is taken first, because the state
        is copied for it."""
        await self._may_enter(caller, PIECE_BYTES, context)
        async with self._place(caller, context):
            if (making := self._handler.making(request.snapshot)) is not None:
                await asyncio.wait({asyncio.wrap_future(making)}, timeout=COPY_S)
            data = await self._piece(caller, request, context)
            given = self._uploads.throttle_for(proven=self._is_proven(caller.peer), fragment=True)
            await self._send(caller, data, request, given, context)

    async def _send_artifact(self, caller: Caller, request: pb.PieceRequest, context: Context) -> None:
        """Send a piece of an artifact. A place is taken first, because the piece is read from disk."""
        proven = self._is_proven(caller.peer)
        if busy := self._uploads.refusal_reason(proven=proven):
            await refuse(context, Code.BUSY, *busy)
        await self._may_enter(caller, PIECE_BYTES, context, artifact=True)
        async with self._place(caller, context, artifact=True):
            data = await self._piece(caller, request, context)
            await self._send(caller, data, request, self._uploads.throttle_for(proven=proven), context)

    async def _piece(self, caller: Caller, request: pb.PieceRequest, context: Context) -> memoryview:
        """Return the requested piece. Refuses the call if it is not available."""
        data = self._handler.on_piece(request.snapshot, request.piece)
        if data is None:
            await refuse(
                context, Code.GONE, NO_ARTIFACT if request.snapshot.startswith(ARTIFACT_PREFIX) else NO_SNAPSHOT
            )
        if request.offset > len(data):
            reason = f"the piece has {len(data)} bytes, those from {request.offset} on are wanted"
            await self.admission.turn_away(context, Code.REQUEST, reason, caller.peer)
        return data

    async def _may_enter(self, caller: Caller, nbytes: int, context: Context, *, artifact: bool = False) -> None:
        """Charge a piece to the caller's limits. Refuses the call if there is no place. Otherwise `_place` has to
        follow immediately."""
        block, proven = block_of_network(caller.address), self._is_proven(caller.peer)
        for places in self._kinds(artifact=artifact):
            if why := places.busy_reason(block, proven=proven):
                await refuse(context, Code.BUSY, why, AGAIN_S)
        assert caller.peer is not None
        rationed = self._uploads.ration_reason(caller.peer, block, nbytes, proven=proven, artifact=artifact)
        if rationed is not None:
            await refuse(context, Code.BUSY, *rationed)
        # all of a resumed piece counts, because it is hashed again from its start
        if why := self.admission.limits.enter_piece(caller, nbytes, artifact=artifact):
            await refuse(context, Code.BUSY, why)
        self._uploads.count(caller.peer, block, nbytes, proven=proven, artifact=artifact)

    @contextlib.asynccontextmanager
    async def _place(self, caller: Caller, context: Context, *, artifact: bool = False) -> AsyncIterator[None]:
        """Hold a place for a piece. Another network's caller may take it, which refuses this call."""
        block, proven = block_of_network(caller.address), self._is_proven(caller.peer)
        try:
            async with contextlib.AsyncExitStack() as held:
                for places in self._kinds(artifact=artifact):
                    await held.enter_async_context(places.held(block, proven=proven))
                yield
        except PartnerRefused as lost:
            await refuse(context, lost.code, lost.reason, lost.eta_s)
        finally:
            self.admission.limits.leave_piece(caller)

    def _kinds(self, *, artifact: bool) -> list[CallPlaces]:
        return [self._piece_places, self._artifact_places] if artifact else [self._piece_places]

    def _is_proven(self, peer: PeerId | None) -> bool:
        return peer is not None and self.admission.reputation.is_proven(peer)

    async def _send(
        self, caller: Caller, data: memoryview, request: pb.PieceRequest, giving: Throttle | None, context: Context
    ) -> None:
        """Send the missing part of a piece, with a timeout. `giving`: the throttle; None: the piece belongs to
        training's own exchanges, which have none."""
        try:
            async with asyncio.timeout(self._patience_s(len(data))):
                opening = pb.SwapOpen(nbytes=len(data), have=request.offset, swap=A_PIECE)
                await context.write(pack(Kind.OPEN, 0, opening.SerializeToString()))
                largest, source, rate = largest_for(request.max_chunk), BytesSource(data), request.max_rate
                writer, caps = PayloadWriter(), self._caps
                await send_payload(context.write, source, caps, rate, giving, largest, writer, request.offset)
        except TimeoutError:
            reason = "the piece was taken too slowly; others wait for the place"
            await self.admission.turn_away(context, Code.TIMEOUT, reason, caller.peer)
        except PartnerRefused as error:  # our own upload quota is used up
            await refuse(context, error.code, error.reason)

    def _patience_s(self, nbytes: int) -> float:
        """Return the timeout of sending one piece in seconds. Our own cap, shared by all pieces being sent, extends
        it."""
        own = 2 * MAX_PIECES * nbytes / self._uploads.rate if self._uploads.rate else 0.0
        return TAKE_S + nbytes / SLOWEST_JOINER + own

    async def swap(self, _: Any, context: Context) -> None:
        """Serve a partner that dials. The handler decides by partner and round; the call then waits for our own
        round."""
        async with self.admission.admitted(context) as caller:
            assert caller.peer is not None
            await self.swaps.serve(caller.peer, context)
