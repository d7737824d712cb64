"""An in-memory network: the `Transport` interface without sockets, in virtual or real time. Links have latency and
bandwidth; peers can be cut off or killed while they exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from blake3 import blake3

from peer.daemon.interfaces import Clock, Handler
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.protocol.messages import (
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    Probed,
    RoundKey,
    Sink,
    Source,
    StateIndex,
    SwapReport,
    Verdict,
    Welcome,
)

T = TypeVar("T")

CHUNK = 64 * 1024


@dataclass(slots=True)
class _Meeting:
    """Two sides of one swap, waiting for each other."""

    sides: dict[PeerId, tuple[Source, Sink]] = field(default_factory=dict)
    both: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Network:
    """Joins `MemoryTransport`s. Times in seconds, rates in bytes per second."""

    latency_s: float = 0.01
    bandwidth: float = 100e6
    connected: Callable[[PeerId, PeerId], bool] = lambda one, other: True
    """Partitions and cut links: whether a message passes now."""
    dialable: Callable[[PeerId], bool] = lambda peer: True
    """Whether others can open a connection to it; a call to one that is not hangs. Answers always pass."""
    tamper: Callable[[PeerId, Source], Source] = lambda sender, source: source
    """What the others get instead of a sender's payload."""
    mute: Callable[[PeerId], bool] = lambda peer: False
    """Peers that lock and answer, and never come to the swap."""
    _hosts: dict[PeerId, MemoryTransport] = field(default_factory=dict)
    _meetings: dict[tuple[PeerId, PeerId, RoundKey], _Meeting] = field(default_factory=dict)

    def kill(self, peer: PeerId) -> None:
        """The peer is gone: calls to it fail at once (connection refused)."""
        self._hosts.pop(peer, None)

    def meeting(self, one: PeerId, other: PeerId, key: RoundKey) -> _Meeting:
        low, high = sorted((one, other))
        return self._meetings.setdefault((low, high, key), _Meeting())

    def part(self, one: PeerId, other: PeerId, key: RoundKey) -> None:
        low, high = sorted((one, other))
        self._meetings.pop((low, high, key), None)

    async def reach(self, sender: PeerId, to: PeerId, *, answer: bool = False) -> MemoryTransport:
        """One way of a call. Hangs when cut off (the caller's deadline ends it), raises when nobody listens."""
        await asyncio.sleep(self.latency_s)
        if not self.connected(sender, to) or not (answer or self.dialable(to)):
            await asyncio.Event().wait()
        host = self._hosts.get(to)
        if host is None:
            raise PartnerLost(f"{to} does not answer: connection refused")
        return host


class MemoryTransport:
    """One peer's end of a `Network`."""

    def __init__(self, network: Network, me: PeerId, handler: Handler, clock: Clock) -> None:
        self._network = network
        self._me = me
        self._handler = handler
        self._clock = clock
        network._hosts[me] = self

    def close(self) -> None:
        self._network.kill(self._me)

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        async def call() -> Welcome:
            before = self._clock.now()
            host = await self._network.reach(self._me, to.peer_id)
            theirs = host._clock.now()
            await asyncio.sleep(self._network.latency_s)
            after = self._clock.now()
            middle = self._clock.raw((before + after) / 2)
            return Welcome(theirs - middle, after - before, f"memory:{self._me}")

        return await _bounded(call(), timeout_s, to.peer_id)

    async def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer:
        async def call() -> Answer:
            host = await self._network.reach(self._me, to.peer_id)
            answer = host._handler.on_offer(self._me, offer)
            await self._network.reach(to.peer_id, self._me, answer=True)
            return answer

        return await _bounded(call(), timeout_s, to.peer_id)

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        async def call() -> Probed:
            await self._network.reach(self._me, by.peer_id)
            await asyncio.sleep(self._network.latency_s)
            reached = self._network.dialable(self._me)
            return Probed(endpoints, endpoints if reached else (), "" if reached else "no answer")

        return await _bounded(call(), timeout_s, by.peer_id)

    async def swap(
        self, partner: PeerRecord, key: RoundKey, source: Source, sink: Sink, timeout_s: float, dial: bool
    ) -> SwapReport:
        try:
            return await _bounded(self._swap(partner.peer_id, key, source, sink, dial), timeout_s, partner.peer_id)
        finally:
            self._network.part(self._me, partner.peer_id, key)

    async def _swap(self, partner: PeerId, key: RoundKey, source: Source, sink: Sink, dial: bool) -> SwapReport:
        if dial:
            host = await self._network.reach(self._me, partner)
            answer = host._handler.on_swap(self._me, key)
            if answer.verdict in (Verdict.TAKEN, Verdict.REFUSED):
                raise PartnerRefused(answer.verdict.value, answer.reason or f"{partner} does not swap {key}")
        if self._network.mute(self._me):
            await asyncio.Event().wait()
        meeting = self._network.meeting(self._me, partner, key)
        meeting.sides[self._me] = (source, sink)
        if len(meeting.sides) == 2:
            meeting.both.set()
        await meeting.both.wait()
        started = self._clock.now()
        theirs = self._network.tamper(partner, meeting.sides[partner][0])
        if theirs.nbytes != sink.nbytes:
            raise BadPayload("length", f"{partner} announces {theirs.nbytes} bytes, {sink.nbytes} are due")
        await asyncio.sleep(self._network.latency_s)
        for offset in range(0, theirs.nbytes, CHUNK):
            data = theirs.read(offset, min(CHUNK, theirs.nbytes - offset))
            await asyncio.sleep(len(data) / self._network.bandwidth)
            sink.write(offset, data)
        await self._network.reach(partner, self._me, answer=True)
        if partner not in self._network._hosts:
            raise PartnerLost(f"{partner} vanished in the middle")
        return SwapReport(source.nbytes, theirs.nbytes, self._clock.now() - started, True)

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        async def call() -> list[tuple[bytes, bytes]]:
            host = await self._network.reach(self._me, to.peer_id)
            return host._handler.on_amendments(held, head)

        return await _bounded(call(), timeout_s, to.peer_id)

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
        async def call() -> tuple[bytes, bytes]:
            host = await self._network.reach(self._me, to.peer_id)
            manifest = host._handler.on_manifest()
            if manifest is None:
                raise PartnerRefused("no_manifest", f"{to.peer_id} has no manifest yet")
            return manifest

        return await _bounded(call(), timeout_s, to.peer_id)

    async def describe_state(self, donor: PeerRecord, timeout_s: float) -> StateIndex:
        async def call() -> StateIndex:
            host = await self._network.reach(self._me, donor.peer_id)
            index = host._handler.on_state()
            if index is None:
                raise PartnerRefused("no_state", f"{donor.peer_id} has no complete state to give")
            return index

        return await _bounded(call(), timeout_s, donor.peer_id)

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes:
        async def call() -> bytes:
            host = await self._network.reach(self._me, donor.peer_id)
            data = host._handler.on_piece(index.snapshot, piece)
            if data is None:
                raise PartnerRefused("gone", f"{donor.peer_id} no longer keeps snapshot {index.snapshot}")
            await asyncio.sleep(len(data) / self._network.bandwidth)
            if blake3(data).digest() != index.pieces[piece].digest:
                raise BadPayload("digest", f"piece {piece} from {donor.peer_id} does not match its digest")
            return bytes(data)

        return await _bounded(call(), timeout_s, donor.peer_id)


async def _bounded(call: Coroutine[Any, Any, T], timeout_s: float, who: PeerId) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError:
        raise PartnerSilent(f"{who} did not answer within {timeout_s:.1f} s") from None
