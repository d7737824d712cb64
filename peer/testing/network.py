"""An in-memory network: the `Transport` interface without sockets, in virtual or real time. Every peer hangs on it by a
link (`peer.testing.links`) that its transfers share (`peer.testing.flows`); links can be cut, one way too, peers be
stopped or killed while they exchange."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
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
from peer.testing.clock import Gate
from peer.testing.flows import Flows, milestones
from peer.testing.groupnetwork import MemoryGroup
from peer.testing.links import PROFILES, Link, message_s, wire_bytes

T = TypeVar("T")


@dataclass(slots=True)
class Carried:
    """What a peer's link carried, in bytes on the wire, both ways, and how many small messages it sent."""

    up: float = 0.0
    down: float = 0.0
    messages: int = 0


@dataclass(slots=True)
class _Meeting:
    """Two sides of one swap, waiting for each other."""

    sides: dict[PeerId, tuple[Source, Sink]] = field(default_factory=dict)
    both: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Network:
    """Joins `MemoryTransport`s."""

    link: Link = PROFILES["lan"]
    """Of every peer that is not in `links`."""
    links: dict[PeerId, Link] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    """Of jitter and loss."""
    connected: Callable[[PeerId, PeerId], bool] = lambda one, other: True
    """More cut links: whether a message passes now. Transfers under way notice at their next milestone."""
    dialable: Callable[[PeerId], bool] = lambda peer: True
    """Whether others can open a connection to it; a call to one that is not hangs. Answers always pass."""
    tamper: Callable[[PeerId, Source], Source] = lambda sender, source: source
    """What the others get instead of a sender's payload."""
    mute: Callable[[PeerId], bool] = lambda peer: False
    """Peers that lock and answer, and never come to the swap."""
    gave: Callable[[PeerId, RoundKey | None, Source | None], None] = lambda sender, key, source: None
    """Told of every payload that goes out for a round, and (None, None) of every state that is described."""
    carried: dict[PeerId, Carried] = field(default_factory=dict)
    gates: dict[PeerId, Gate] = field(default_factory=dict)
    """Of peers that can be stopped."""
    _cut: set[tuple[PeerId, PeerId]] = field(default_factory=set)
    _side: dict[PeerId, int] = field(default_factory=dict)
    _hosts: dict[PeerId, MemoryTransport] = field(default_factory=dict)
    _meetings: dict[tuple[PeerId, PeerId, RoundKey], _Meeting] = field(default_factory=dict)
    flows: Flows = field(init=False)

    def __post_init__(self) -> None:
        self.flows = Flows(self.link_of, self._flows_between)

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """The peer is gone: calls to it fail at once (connection refused), transfers with it break."""
        self._hosts.pop(peer, None)
        self.flows.break_off(peer)

    def cut(self, one: PeerId, other: PeerId, *, both_ways: bool = True) -> None:
        """Nothing passes from `one` to `other` any more, nor (`both_ways`) back; nobody is told."""
        self._cut |= {(one, other), (other, one)} if both_ways else {(one, other)}
        self.changed(one)

    def mend(self, one: PeerId, other: PeerId) -> None:
        """Undo `cut`, both ways."""
        self._cut -= {(one, other), (other, one)}
        self.changed(one)

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Nothing passes between two sides. Peers named nowhere form one more side."""
        self._side = {peer: index for index, side in enumerate(sides) for peer in side}
        self.changed()

    def heal(self) -> None:
        """Undo `partition`."""
        self.partition()

    def changed(self, peer: PeerId | None = None) -> None:
        """To be called after `links`, `gates` or `connected` were changed, for transfers under way."""
        self.flows.changed(peer)

    # -- what passes -------------------------------------------------------------------------------------------------

    def link_of(self, peer: PeerId) -> Link:
        return self.links.get(peer, self.link)

    def passes(self, sender: PeerId, to: PeerId) -> bool:
        """Whether a message from one to the other arrives now."""
        apart = bool(self._side) and self._side.get(sender) != self._side.get(to)
        return not apart and (sender, to) not in self._cut and self.connected(sender, to)

    def _flows_between(self, sender: PeerId, to: PeerId) -> bool:
        """A transfer needs its acknowledgements too, and two running processes."""
        stopped = any((gate := self.gates.get(peer)) is not None and gate.shut for peer in (sender, to))
        return not stopped and self.passes(sender, to) and self.passes(to, sender)

    def load(self, peer: PeerId) -> Carried:
        return self.carried.setdefault(peer, Carried())

    async def reach(self, sender: PeerId, to: PeerId, *, answer: bool = False) -> MemoryTransport:
        """One way of a call. Hangs when cut off (the caller's deadline ends it), raises when nobody listens."""
        self.load(sender).messages += 1
        await asyncio.sleep(message_s(self.link_of(sender), self.link_of(to), self.rng))
        if not self.passes(sender, to) or not (answer or self.dialable(to)):
            await asyncio.Event().wait()
        if (gate := self.gates.get(to)) is not None and gate.shut:
            await gate.opened()
        host = self._hosts.get(to)
        if host is None:
            raise PartnerLost(f"{to} does not answer: connection refused")
        return host

    async def carry(
        self, sender: PeerId, to: PeerId, nbytes: int, arrived: Callable[[int], None] = lambda upto: None
    ) -> None:
        """Move so many bytes of payload, at what the links leave it; `arrived` hears of progress now and then, in bytes
        from the beginning. Raises PartnerLost when an end vanishes, PartnerSilent when nothing moves for long."""
        await asyncio.sleep(message_s(self.link_of(sender), self.link_of(to), self.rng))
        total, before = wire_bytes(nbytes), 0.0
        flow = self.flows.begin(sender, to, total)
        try:
            for mark in milestones(nbytes, flow.rate * nbytes / max(total, 1.0)):
                await self.flows.until(flow, total * mark / nbytes)
                self.load(sender).up += flow.done - before
                self.load(to).down += flow.done - before
                before = flow.done
                arrived(mark)
        finally:
            self.flows.end(flow)

    # -- meetings ----------------------------------------------------------------------------------------------------

    def meeting(self, one: PeerId, other: PeerId, key: RoundKey) -> _Meeting:
        low, high = sorted((one, other))
        return self._meetings.setdefault((low, high, key), _Meeting())

    def part(self, one: PeerId, other: PeerId, key: RoundKey) -> None:
        low, high = sorted((one, other))
        self._meetings.pop((low, high, key), None)


class MemoryTransport:
    """One peer's end of a `Network`."""

    def __init__(self, network: Network, me: PeerId, handler: Handler, clock: Clock) -> None:
        self._network = network
        self._me = me
        self._handler = handler
        self._clock = clock
        self.group = MemoryGroup(network, me, clock)
        network._hosts[me] = self

    def close(self) -> None:
        self._network.kill(self._me)

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        async def call() -> Welcome:
            before = self._clock.now()
            host = await self._network.reach(self._me, to.peer_id)
            theirs = host._clock.now()
            await self._network.reach(to.peer_id, self._me, answer=True)
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
            await self._network.reach(by.peer_id, self._me, answer=True)
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
        self._network.gave(partner, key, theirs)
        await self._network.carry(partner, self._me, theirs.nbytes, _into(sink, theirs))
        return SwapReport(source.nbytes, theirs.nbytes, self._clock.now() - started, True)

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        async def call() -> list[tuple[bytes, bytes]]:
            host = await self._network.reach(self._me, to.peer_id)
            lacking = host._handler.on_amendments(held, head)
            await self._network.reach(to.peer_id, self._me, answer=True)
            return lacking

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
            self._network.gave(donor.peer_id, None, None)
            await self._network.reach(donor.peer_id, self._me, answer=True)
            return index

        return await _bounded(call(), timeout_s, donor.peer_id)

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes:
        async def call() -> bytes:
            host = await self._network.reach(self._me, donor.peer_id)
            data = host._handler.on_piece(index.snapshot, piece)
            if data is None:
                raise PartnerRefused("gone", f"{donor.peer_id} no longer keeps snapshot {index.snapshot}")
            await self._network.carry(donor.peer_id, self._me, len(data))
            if blake3(data).digest() != index.pieces[piece].digest:
                raise BadPayload("digest", f"piece {piece} from {donor.peer_id} does not match its digest")
            return bytes(data)

        return await _bounded(call(), timeout_s, donor.peer_id)


def _into(sink: Sink, source: Source) -> Callable[[int], None]:
    """Hands a payload over up to where it has arrived; the sink sees every byte, in order."""
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
