"""The server side of contributions to a shard.

While the owner of a shard receives or waits for contributions, it sends a `wait` frame every `PULSE_S` as a heartbeat.
A member therefore notices within `STALL_S` that its owner has died, and need not guess how long a round takes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from peer.aio.events import Signal
from peer.aio.tasks import cancel_and_wait
from peer.codes import Code, rejected
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.protocol.group.shards import ContributionHeader, UploadSlot
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import BytesSource
from peer.transport.calls.call import CallServices
from peer.transport.calls.group import group_of
from peer.transport.server.admission import Admission
from peer.transport.server.read_slots import CONTRIBUTIONS
from peer.transport.wire.group_messages import contribute_reply, is_farewell, opening_of
from peer.transport.wire.payload_stream import STALL_S, Caps, receive_payload, send_payload
from peer.transport.wire.reader import message_reader
from peer.transport.wire.refusals import Context, refuse

PULSE_S = 1.0
"""Seconds between two heartbeats."""
MAX_SEATS = 96
"""Contributions served at once; more are refused."""
TAKE_S = 30.0
"""Minimum seconds in which a member has to read a result."""
SLOWEST_MEMBER = 8_000.0
"""Bytes per second. A member that reads a result more slowly loses its place."""


class GroupService:
    """Serves contributions.

    Every wait for a caller has a deadline: `STALL_S` between two frames, and the shard owner's deadline for all of
    them."""

    def __init__(self, services: CallServices, admission: Admission, caps: Caps) -> None:
        self._services = services
        self._admission = admission
        self._caps = caps
        self._seats = 0
        self._receiving = asyncio.Semaphore(CONTRIBUTIONS)

    async def contribute(self, _: Any, context: Context) -> None:
        async with self._admission.admitted(context) as caller:
            assert caller.peer is not None
            group = group_of(self._services)
            raw = await self._admission.request(context, caller.peer)
            try:
                opening, max_rate = opening_of(raw)
            except BadPayload as error:
                await self._admission.turn_away(context, error.code, error.reason, caller.peer)
            if self._seats >= MAX_SEATS:
                await refuse(context, Code.BUSY, "too many contributions are under way here")
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

    async def _serve(
        self, seat: UploadSlot, opening: ContributionHeader, caller: PeerId, max_rate: float, context: Context
    ) -> None:
        have, over = opening.have if seat.transfer else 0, Signal()
        pulse = asyncio.create_task(self._pulse(seat, context, over))
        try:
            await self._receive(seat, caller, context)
            result = await seat.result()
        finally:
            over.set()  # not cancelled, as a cancelled write leaves the call without an end
            await asyncio.wait({pulse}, timeout=STALL_S)
            await cancel_and_wait(pulse)
            broke = not pulse.cancelled() and pulse.exception() is not None
        if broke:  # the heartbeat could not be sent: the caller is gone
            return
        if have > len(result.payload):
            reason = f"the result has {len(result.payload)} bytes, those from {have} on are wanted"
            await self._admission.turn_away(context, Code.REQUEST, reason, caller)
        try:
            async with asyncio.timeout(self._patience_s(len(result.payload))):
                await context.write(contribute_reply("result", result, 0.0, seat.transfer, seat.have))
                await send_payload(context.write, BytesSource(result.payload), self._caps, max_rate, have=have)
        except TimeoutError:
            await self._admission.turn_away(context, Code.TIMEOUT, "the result was taken too slowly", caller)
        if seat.transfer:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STALL_S):
                    if is_farewell(await message_reader(context)(), seat.transfer, len(result.payload)):
                        seat.mark_delivered()

    async def _receive(self, seat: UploadSlot, caller: PeerId, context: Context) -> None:
        if seat.sink is None:
            return
        try:
            async with asyncio.timeout(seat.patience_s), self._receiving:
                await receive_payload(message_reader(context), seat.sink, self._caps, seat.reader)
                seat.complete()
        except TimeoutError:
            raise PartnerRefused(Code.LATE, "the shard is closed, and your contribution is not complete") from None
        except BadPayload as error:
            seat.reject()
            self._admission.reputation.penalize(caller, error.code, error.reason)
            raise PartnerRefused(rejected(error.code), error.reason) from None
        except PartnerSilent as error:
            raise PartnerRefused(Code.TIMEOUT, str(error)) from None
        except PartnerLost:
            raise PartnerRefused(Code.LOST, "the contribution ended in the middle") from None

    async def _pulse(self, seat: UploadSlot, context: Context, over: Signal) -> None:
        """Request the contribution, then send a heartbeat every `PULSE_S` until `over`."""
        first = "send" if seat.sink is not None else "wait"
        frame = contribute_reply(first, None, self._caps.down.rate or 0.0, seat.transfer, seat.have)
        while not over.is_set():
            await context.write(frame)
            frame = contribute_reply("wait")
            await over.wait_for(PULSE_S)

    def _patience_s(self, nbytes: int) -> float:
        """Return the seconds in which a member has to read a result of `nbytes`. Our own upload cap extends them."""
        own = 2 * MAX_SEATS * nbytes / self._caps.up.rate if self._caps.up.rate else 0.0
        return TAKE_S + nbytes / SLOWEST_MEMBER + own
