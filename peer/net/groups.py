"""A group's calls over gRPC, both sides: joining a round, contributing a shard and receiving its result, what is held.

While an owner receives a contribution or waits for others', it sends a `wait` frame every second: a member whose owner
died or fell asleep notices within `STALL_S`, without a deadline that would have to guess how long a round takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.net.calls import Stream
from peer.net.channels import Connection
from peer.net.contributing import Contributing
from peer.net.gate import Gate
from peer.net.groupwire import (
    base_message,
    base_of,
    contribute_reply,
    is_parting,
    join_of,
    join_reply,
    join_reply_of,
    join_request,
    opening_of,
)
from peer.net.handler import GroupHandler, Handler
from peer.net.receiving import CONTRIBUTIONS
from peer.net.refusal import Context, bad_payload_code, refuse, served
from peer.net.resuming import Answered, Progress
from peer.net.stream import STALL_S, Caps, receive_payload, send_payload
from peer.net.stripes import Read
from peer.protocol.messages import PIECE_BYTES, PeerId, PeerRecord, Source
from peer.protocol.payload import BytesSource
from peer.protocol.quorum import Base
from peer.protocol.roster import Join, JoinReply
from peer.protocol.shards import Opening, Receipt, ResultSink, Seat
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")

PULSE_S = 1.0
MAX_SEATS = 96
"""Contributions under way here; more are refused."""
TAKE_S = 30.0
SLOWEST_MEMBER = 8_000.0
"""Bytes per second. Who takes a result more slowly loses its place."""


class GroupService:
    """The served side. Every wait on a caller has a deadline: `STALL_S` between two frames, and the owner's own for the
    whole."""

    def __init__(self, handler: Handler, gate: Gate, caps: Caps) -> None:
        self._handler = handler
        self._gate = gate
        self._caps = caps
        self._seats = 0
        self._receiving = asyncio.Semaphore(CONTRIBUTIONS)

    def methods(self) -> dict[str, Any]:
        """By the name under which they are served."""
        unary = self._gate.unary
        return {
            "JoinRound": unary(self._join, pb.JoinRoundRequest.FromString, pb.JoinRoundReply.SerializeToString),
            "Held": unary(self._held, pb.HeldRequest.FromString, pb.HeldReply.SerializeToString),
            "Contribute": served(self._contribute),
        }

    async def _group(self, context: Context) -> GroupHandler:
        if (group := self._handler.group) is None:
            await refuse(context, "no_group", "this peer takes part in no group (yet)")
        return group

    async def _join(self, request: pb.JoinRoundRequest, context: Context) -> pb.JoinRoundReply:
        caller = await self._gate.owner(context)
        group = await self._group(context)
        try:
            join = join_of(request)
        except BadPayload as error:
            await self._gate.turn_away(context, error.code, error.reason, caller)
        return join_reply(await group.on_join(caller, join))

    async def _held(self, request: pb.HeldRequest, context: Context) -> pb.HeldReply:
        await self._gate.owner(context)
        group = await self._group(context)
        if (base := group.on_held(request.fragment)) is None:
            await refuse(context, "no_state", "no complete state of that fragment is held here (yet)")
        return pb.HeldReply(base=base_message(base))

    async def _contribute(self, _: Any, context: Context) -> None:
        async with self._gate.admitted(context) as caller:
            assert caller.peer is not None
            group = await self._group(context)
            raw = await self._gate.request(context, caller.peer)
            try:
                opening, max_rate = opening_of(raw)
            except BadPayload as error:
                await self._gate.turn_away(context, error.code, error.reason, caller.peer)
            if self._seats >= MAX_SEATS:
                await refuse(context, "busy", "too many contributions are under way here")
            self._seats += 1
            try:
                seat = await group.on_contribution(caller.peer, opening)
                try:
                    await self._serve(seat, opening, caller.peer, max_rate, context)
                finally:
                    seat.leave()
            except PartnerRefused as error:
                await refuse(context, error.code, error.reason)
            finally:
                self._seats -= 1

    async def _serve(self, seat: Seat, opening: Opening, caller: PeerId, max_rate: float, context: Context) -> None:
        have, over = opening.have if seat.transfer else 0, asyncio.Event()
        pulse = asyncio.create_task(self._pulse(seat, context, over))
        try:
            await self._receive(seat, caller, context)
            result = await seat.result()
        finally:
            over.set()  # not cancelled: a write that is cut off in the middle leaves the call without an end
            await asyncio.wait({pulse}, timeout=STALL_S)
            pulse.cancel()
            await asyncio.wait({pulse})
            broke = not pulse.cancelled() and pulse.exception() is not None
        if broke:  # the caller is gone
            return
        if have > len(result.payload):
            reason = f"the result has {len(result.payload)} bytes, those from {have} on are wanted"
            await self._gate.turn_away(context, "request", reason, caller)
        try:
            async with asyncio.timeout(self._patience_s(len(result.payload))):
                await context.write(contribute_reply("result", result, 0.0, seat.transfer, seat.have))
                await send_payload(context.write, BytesSource(result.payload), self._caps, max_rate, have=have)
        except TimeoutError:
            await self._gate.turn_away(context, "timeout", "the result was taken too slowly", caller)
        if seat.transfer:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STALL_S):
                    if is_parting(await _served(context)(), seat.transfer, len(result.payload)):
                        seat.taken()

    async def _receive(self, seat: Seat, caller: PeerId, context: Context) -> None:
        if seat.sink is None:
            return
        try:
            async with asyncio.timeout(seat.patience_s), self._receiving:
                await receive_payload(_served(context), seat.sink, self._caps, seat.reader)
                seat.complete()
        except TimeoutError:
            raise PartnerRefused("late", "the shard is closed, and your contribution is not complete") from None
        except BadPayload as error:
            seat.spoilt()
            self._gate.conduct.offence(caller, error.code, error.reason)
            raise PartnerRefused(bad_payload_code(error), error.reason) from None
        except PartnerSilent as error:
            raise PartnerRefused("timeout", str(error)) from None
        except PartnerLost:
            raise PartnerRefused("lost", "the contribution ended in the middle") from None

    async def _pulse(self, seat: Seat, context: Context, over: asyncio.Event) -> None:
        """Tells the caller to send, and then that we are still there."""
        first = "send" if seat.sink is not None else "wait"
        frame = contribute_reply(first, None, self._caps.down.rate or 0.0, seat.transfer, seat.have)
        while not over.is_set():
            await context.write(frame)
            frame = contribute_reply("wait")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PULSE_S):
                    await over.wait()

    def _patience_s(self, nbytes: int) -> float:
        own = 2 * MAX_SEATS * nbytes / self._caps.up.rate if self._caps.up.rate else 0.0
        return TAKE_S + nbytes / SLOWEST_MEMBER + own


class Resumed(Protocol):
    """`GrpcTransport`'s way to transfer: after a Hello where it takes one, over as many connections as it takes,
    bounded, its failures translated."""

    def __call__(
        self, to: PeerRecord, stream: Stream[None], progress: Progress, timeout_s: float, /
    ) -> Awaitable[None]: ...


class Unary(Protocol):
    def __call__(
        self, to: PeerRecord, method: str, request: Any, reply: type[T], timeout_s: float, /
    ) -> Awaitable[T]: ...


class Fetch(Protocol):
    """Some bytes of a snapshot, of just this length."""

    def __call__(
        self, donor: PeerRecord, snapshot: str, piece: int, nbytes: int, timeout_s: float, /
    ) -> Awaitable[bytes]: ...


class GroupCalls:
    """The callers' side: the `GroupTransport` interface over gRPC."""

    def __init__(self, unary: Unary, resumed: Resumed, fetch: Fetch, caps: Caps) -> None:
        self._unary = unary
        self._resumed = resumed
        self._fetch = fetch
        self._caps = caps

    async def join_round(self, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
        return join_reply_of(await self._unary(leader, "JoinRound", join_request(join), pb.JoinRoundReply, timeout_s))

    async def held(self, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
        reply = await self._unary(by, "Held", pb.HeldRequest(fragment=fragment), pb.HeldReply, timeout_s)
        return base_of(reply.base)

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        assert 0 < nbytes <= PIECE_BYTES
        return await self._fetch(donor, snapshot, part, nbytes, timeout_s)

    async def contribute(
        self, owner: PeerRecord, opening: Opening, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        assert opening.nbytes == (source.nbytes if source is not None else 0)
        began, connected = time.monotonic(), asyncio.Event()
        contributing = Contributing(opening, source, sink, self._caps)

        async def stream(connection: Connection, answered: Answered) -> None:
            connected.set()
            await contributing.stream(connection, answered)

        await _if_connected(connected, self._resumed(owner, stream, contributing.progress, timeout_s))
        return Receipt(opening.nbytes, sink.nbytes, time.monotonic() - began)


async def _if_connected(connected: asyncio.Event, call: Awaitable[T]) -> T:
    """The call may take long; to reach the owner it may not."""
    running = asyncio.ensure_future(call)
    waiting = asyncio.ensure_future(connected.wait())
    try:
        await asyncio.wait({running, waiting}, timeout=STALL_S, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not connected.is_set():
            raise PartnerSilent(f"the owner of a shard could not be reached within {STALL_S:.0f} s")
        return await running
    finally:
        running.cancel()
        waiting.cancel()
        await asyncio.wait({running, waiting})
        if not running.cancelled():
            running.exception()  # where it came too late to be raised


def _served(context: Context) -> Read:
    async def read() -> bytes | None:
        message = await context.read()
        return message if isinstance(message, bytes) else None

    return read
