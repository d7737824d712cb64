"""The `GroupCalls` interface over the in-memory network, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from peer.codes import Code, rejected
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.lab.sim.bandwidth import STALL_S
from peer.ports.clock import Clock
from peer.ports.handler import GroupHandler
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink, ShardResult, UploadSlot
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.wire.payload import BytesSource, Sink, Source
from peer.transport.calls.group import group_of

if TYPE_CHECKING:
    from peer.lab.sim.network import Network

T = TypeVar("T")
LIVENESS_CHECK_S = 1.0


class MemoryGroup:
    """One peer's client for the calls of a group round: contribute to a shard, fetch a part of a snapshot."""

    def __init__(self, network: Network, me: PeerId, clock: Clock) -> None:
        self._network = network
        self._me = me
        self._clock = clock

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        async def call() -> bytes:
            host = await self._network.reach(self._me, donor.peer_id)
            host.admit(self._me)
            data = host._handler.on_piece(snapshot, part)
            if data is None:
                raise PartnerRefused(Code.GONE, f"{donor.peer_id} no longer holds {snapshot}")
            if len(data) != nbytes:
                raise BadPayload(Code.LENGTH, f"{len(data)} bytes announced, {nbytes} are due")
            copy = bytes(data)
            await self._network.carry(donor.peer_id, self._me, len(copy))
            return copy

        return await _bounded(call(), timeout_s, donor.peer_id)

    async def contribute(
        self, owner: PeerRecord, opening: ContributionHeader, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        return await _bounded(self._contribute(owner.peer_id, opening, source, sink), timeout_s, owner.peer_id)

    async def _contribute(
        self, owner: PeerId, opening: ContributionHeader, source: Source | None, sink: ResultSink
    ) -> Receipt:
        began = self._clock.now()
        host = await _bounded(self._network.reach(self._me, owner), STALL_S, owner)
        host.admit(self._me)
        group = group_of(host._call_services)
        result = await self._watched(owner, self._await_result(group, owner, opening, source))
        await self._receive_result(owner, result, sink)
        return Receipt(opening.nbytes, sink.nbytes, self._clock.now() - began)

    async def _await_result(
        self, group: GroupHandler, owner: PeerId, opening: ContributionHeader, source: Source | None
    ) -> ShardResult:
        """Run the owner's handler for this contribution: upload the payload, then wait for the shard's result."""
        seat = await group.on_contribution(self._me, opening)
        try:
            if seat.sink is not None and source is not None:
                await self._send(owner, seat, self._network.tamper(self._me, source), opening)
            return await seat.result()
        finally:
            seat.leave()

    async def _send(self, owner: PeerId, seat: UploadSlot, source: Source, opening: ContributionHeader) -> None:
        assert seat.sink is not None
        if source.nbytes != seat.sink.nbytes:
            raise PartnerRefused(rejected(Code.LENGTH), "the contribution has another length than announced")
        self._network.on_payload_sent(self._me, opening.key, source)
        await self._network.carry(self._me, owner, source.nbytes, sink_feeder(seat.sink, source), calls=self._me)
        seat.complete()

    async def _receive_result(self, owner: PeerId, result: ShardResult, sink: ResultSink) -> None:
        """Transfer the shard's result from the owner into `sink`."""
        given = self._network.tamper(owner, BytesSource(result.payload))
        sink.begins(result.named, result.signature, given.nbytes)
        await self._network.carry(owner, self._me, given.nbytes, sink_feeder(sink, given))

    async def _watched(self, to: PeerId, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a peer's answer, with a check every second. Raises PartnerLost when the peer is gone, and
        PartnerSilent after STALL_S in which it was stopped or cut off."""
        running, silent_s = asyncio.ensure_future(call), 0.0
        try:
            while True:
                done, _ = await asyncio.wait({running}, timeout=LIVENESS_CHECK_S)
                if to not in self._network._hosts:
                    raise PartnerLost(f"{to} vanished in the middle")
                if self._network.flows_between(to, self._me):
                    silent_s = 0.0
                    if done:
                        return running.result()
                elif (silent_s := silent_s + LIVENESS_CHECK_S) >= STALL_S:
                    raise PartnerSilent(f"{to} said nothing for {STALL_S:.0f} s", Code.SILENT)
                elif done:
                    await asyncio.sleep(LIVENESS_CHECK_S)
        finally:
            running.cancel()
            await asyncio.wait({running})


def sink_feeder(sink: Sink, source: Source) -> Callable[[int], None]:
    """Return a callback for `Network.carry`, which writes the payload into the sink up to a mark. The sink gets every
    byte once, in order."""
    at = 0

    def arrived(upto: int) -> None:
        nonlocal at
        if upto > at:
            sink.write(at, source.read(at, upto - at))
            at = upto

    return arrived


async def _bounded(call: Coroutine[Any, Any, T], timeout_s: float, who: PeerId) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError:
        raise PartnerSilent(f"{who} did not answer within {timeout_s:.1f} s") from None
