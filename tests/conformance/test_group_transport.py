"""Conformance suite for a group's calls on both transports: gRPC over loopback TLS, and the in-memory network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.codec.registry import EVERY
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.exchange.group.context import GroupContext, GroupTerms
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.member import GroupMember
from peer.exchange.group.sparse_result import SparseResult
from peer.identity import Identity
from peer.lab.sim.links import Link
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.observe.status.codec import to_json
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Join, JoinReply, JoinStatus, SignedRoster
from peer.protocol.group.shards import ContributionHeader, ShardResult, UploadSlot
from peer.protocol.messages import PeerId, PeerRecord, Reach, RelayAddress, RoundKey, RunId, Status
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import RelayPolicy, TransportPolicy
from peer.transport.server import group_service as groups
from peer.transport.signing import KeySigner

RUN = RunId(b"R" * 32)
KEY = RoundKey(7, 1)
BASE = Base(b"d" * 32, (PeerId("a"), PeerId("b")), 3)
TIMEOUT = 10.0


class Mean(BufferSink):
    """The sink into which a member receives a result."""

    named: tuple[int, ...] = (-1,)

    def begins(self, named: tuple[int, ...], signature: bytes, nbytes: int) -> None:
        assert self.named == (-1,), "begins once"
        if nbytes != self.nbytes:
            raise BadPayload("length", f"a result of {nbytes} bytes, {self.nbytes} are due")
        self.named = named


class Place(UploadSlot):
    """An upload slot that answers as the test sets."""

    def __init__(self, expected: int, answer: ShardResult | PartnerRefused | asyncio.Future[ShardResult]) -> None:
        self.buffer = BufferSink(expected) if expected else None
        self.sink = self.buffer
        self.answer = answer
        self.late = False
        self.left = asyncio.Event()

    def complete(self) -> None:
        if self.late:
            raise PartnerRefused("late", "this shard was closed")

    async def result(self) -> ShardResult:
        if isinstance(self.answer, PartnerRefused):
            raise self.answer
        return self.answer if isinstance(self.answer, ShardResult) else await self.answer

    def leave(self) -> None:
        self.left.set()


@dataclass
class Members:
    """The group side of a handler."""

    reply: JoinReply = field(default_factory=lambda: JoinReply(JoinStatus.WAIT, collecting=True))
    base: Base | None = BASE
    place: Place | PartnerRefused = field(default_factory=lambda: Place(0, ShardResult(b"", ())))
    joins: list[tuple[PeerId, Join]] = field(default_factory=list)
    openings: list[tuple[PeerId, ContributionHeader]] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_join(self, sender: PeerId, join: Join) -> JoinReply:
        self.joins.append((sender, join))
        return self.reply

    async def on_contribution(self, sender: PeerId, opening: ContributionHeader) -> UploadSlot:
        self.openings.append((sender, opening))
        self.opened.set()
        if isinstance(self.place, PartnerRefused):
            raise self.place
        return self.place

    def on_held(self, fragment: int) -> Base | None:
        return self.base if fragment == 1 else None


@dataclass
class Owner:
    """A handler with only a group, and parts to send."""

    group: Any = field(default_factory=Members)
    parts: list[bytes] = field(default_factory=list)

    def on_hello(self, record: PeerRecord) -> None: ...

    def making(self, snapshot: str) -> None:
        return None

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        held = ("fragment:1:ab", "shard:ab:3")
        return memoryview(self.parts[piece]) if snapshot in held and piece < len(self.parts) else None


@dataclass
class End:
    record: PeerRecord
    owner: Owner
    transport: Any
    close: Callable[[], Awaitable[None]]


def record_of(peer: str, endpoint: str) -> PeerRecord:
    now = RunClock().now()
    return PeerRecord(PeerId(peer), RUN, (endpoint,), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)


async def grpc_end(network: Network, identity: Identity | None = None) -> End:
    identity, owner = identity or Identity.generate(), Owner()
    policy = TransportPolicy(relaying=RelayPolicy(rate=1e9))
    transport = GrpcTransport(identity, RUN, owner, RunClock().now, policy)  # type: ignore[arg-type]
    transport.begin_run(RunTerms(b"L" * 32, 2**26))
    port = await transport.start("127.0.0.1", 0)
    return End(record_of(identity.peer_id, f"127.0.0.1:{port}"), owner, transport, transport.close)


async def relayed_end(network: Network, identity: Identity | None = None) -> End:
    """Create a closed peer that others call over its relay."""
    end, relay = await grpc_end(network, identity), await grpc_end(network)
    granted = asyncio.Event()
    holding = end.transport.hold_reservation(relay.record, lambda rate, word: granted.set())
    task = asyncio.create_task(holding)
    await granted.wait()

    async def close() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await end.close()
        await relay.close()

    relays = (RelayAddress(relay.record.peer_id, relay.record.endpoints[0]),)
    return replace(end, record=replace(end.record, endpoints=(), reachable=False, relays=relays), close=close)


async def memory_end(network: Network, identity: Identity | None = None) -> End:
    identity, owner = identity or Identity.generate(), Owner()
    transport = MemoryTransport(network, PeerId(identity.peer_id), owner, RunClock())  # type: ignore[arg-type]

    async def close() -> None:
        transport.close()

    return End(record_of(identity.peer_id, "memory:0"), owner, transport, close)


@pytest.fixture(params=[grpc_end, relayed_end, memory_end], ids=["grpc", "relayed", "memory"])
def make(request: pytest.FixtureRequest) -> Callable[[Network], Awaitable[End]]:
    return request.param


@contextlib.asynccontextmanager
async def two(make: Any) -> AsyncIterator[tuple[End, End]]:
    network = Network(link=Link("near", 100e6, 100e6, 0.0005))
    ends = [await make(network), await make(network)]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            await end.close()


def scenario(test: Callable[[End, End], Awaitable[None]]) -> Callable[[Any], None]:
    def run(make: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(90), two(make) as (one, other):
                await test(one, other)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def opening(nbytes: int) -> ContributionHeader:
    return ContributionHeader(KEY, b"r" * 32, 2, 4096, nbytes)


@scenario
async def test_a_join_reaches_the_leader_and_its_answer_comes_back(one: End, other: End) -> None:
    join = Join(KEY, BASE, reach=Reach.NONE, wait_s=1.5)
    assert await one.transport.join_round(other.record, join, TIMEOUT) == other.owner.group.reply
    assert other.owner.group.joins == [(one.record.peer_id, join)]
    fresh = Join(KEY, Base(b"0" * 32))
    other.owner.group.reply = JoinReply(JoinStatus.ROSTER, SignedRoster(b"roster" * 100, b"s" * 64))
    assert await one.transport.join_round(other.record, fresh, TIMEOUT) == other.owner.group.reply
    assert other.owner.group.joins[1][1] == fresh
    other.owner.group.reply = JoinReply(JoinStatus.NONE, reason="past that round")
    assert await one.transport.join_round(other.record, join, TIMEOUT) == other.owner.group.reply


@scenario
async def test_what_is_held_is_told(one: End, other: End) -> None:
    assert await one.transport.held(other.record, 1, TIMEOUT) == BASE
    with pytest.raises(PartnerRefused, match="no_state"):
        await one.transport.held(other.record, 0, TIMEOUT)


@scenario
async def test_a_contribution_is_exchanged_for_the_result(one: End, other: End) -> None:
    data, mean = bytes(range(256)) * 2000, b"m" * 300_001
    place = other.owner.group.place = Place(len(data), ShardResult(mean, (0, 2, 5)))
    sink = Mean(len(mean))
    receipt = await one.transport.contribute(other.record, opening(len(data)), BytesSource(data), sink, TIMEOUT)
    assert bytes(sink.data) == mean
    assert place.buffer is not None
    assert bytes(place.buffer.data) == data
    assert (sink.named, receipt.bytes_sent, receipt.bytes_received) == ((0, 2, 5), len(data), len(mean))
    (sender, opened) = other.owner.group.openings[0]
    assert (sender, replace(opened, transfer=0)) == (one.record.peer_id, opening(len(data)))
    await place.left.wait()


@scenario
async def test_the_result_alone_can_be_asked_for(one: End, other: End) -> None:
    other.owner.group.place = Place(0, ShardResult(b"mean", (1,)))
    sink = Mean(4)
    receipt = await one.transport.contribute(other.record, opening(0), None, sink, TIMEOUT)
    assert (bytes(sink.data), sink.named, receipt.bytes_sent) == (b"mean", (1,), 0)


def test_a_member_waits_for_the_others_with_its_owner(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "PULSE_S", 0.05)

    async def main() -> None:
        async with asyncio.timeout(90), two(make) as (one, other):
            await _waits(one, other)

    asyncio.run(main())


async def _waits(one: End, other: End) -> None:
    future: asyncio.Future[ShardResult] = asyncio.get_running_loop().create_future()
    other.owner.group.place = Place(4, future)
    sink = Mean(2)
    waiting = asyncio.create_task(
        one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), sink, TIMEOUT)
    )
    done, _ = await asyncio.wait({waiting}, timeout=0.3)  # longer than a few pulses
    assert not done
    future.set_result(ShardResult(b"ok", (0,)))
    await waiting
    assert bytes(sink.data) == b"ok"


@pytest.mark.parametrize("code", ["late", "have", "none", "other_roster", "bad_payload:norm"])
def test_a_refusal_comes_with_its_code(make: Any, code: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), two(make) as (one, other):
            refusal = PartnerRefused(code, "because")
            for place in (refusal, Place(4, refusal)):
                other.owner.group.place = place
                with pytest.raises(PartnerRefused, match="because") as caught:
                    await one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), Mean(2), TIMEOUT)
                assert caught.value.code == code

    asyncio.run(main())


@scenario
async def test_a_contribution_that_came_too_late_is_told_so(one: End, other: End) -> None:
    place = other.owner.group.place = Place(4, ShardResult(b"ok", ()))
    place.late = True
    with pytest.raises(PartnerRefused) as caught:
        await one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), Mean(2), TIMEOUT)
    assert caught.value.code == "late"
    await place.left.wait()


@scenario
async def test_a_contribution_of_another_length_is_refused(one: End, other: End) -> None:
    other.owner.group.place = Place(5, ShardResult(b"ok", ()))
    with pytest.raises(PartnerRefused) as caught:
        await one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), Mean(2), TIMEOUT)
    assert caught.value.code == "bad_payload:length"


@scenario
async def test_a_result_of_another_length_is_refused(one: End, other: End) -> None:
    other.owner.group.place = Place(4, ShardResult(b"long", ()))
    with pytest.raises(BadPayload, match="length"):
        await one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), Mean(2), TIMEOUT)


@scenario
async def test_a_peer_without_a_group_says_so(one: End, other: End) -> None:
    other.owner.group = None
    for call in (
        one.transport.join_round(other.record, Join(KEY, BASE), TIMEOUT),
        one.transport.held(other.record, 1, TIMEOUT),
        one.transport.contribute(other.record, opening(0), None, Mean(2), TIMEOUT),
    ):
        with pytest.raises(PartnerRefused, match="no group"):
            await call


@scenario
async def test_an_owner_that_vanishes_is_lost_within_seconds(one: End, other: End) -> None:
    future: asyncio.Future[ShardResult] = asyncio.get_running_loop().create_future()
    other.owner.group.place = Place(4, future)
    waiting = asyncio.create_task(
        one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), Mean(2), 60.0)
    )
    await other.owner.group.opened.wait()
    await other.close()
    with pytest.raises(PartnerLost):
        await asyncio.wait_for(waiting, 8.0)


@scenario
async def test_a_cancelled_contribution_leaves_its_seat(one: End, other: End) -> None:
    future: asyncio.Future[ShardResult] = asyncio.get_running_loop().create_future()
    place = other.owner.group.place = Place(4, future)
    waiting = asyncio.create_task(
        one.transport.contribute(other.record, opening(4), BytesSource(b"1234"), Mean(2), 60.0)
    )
    await other.owner.group.opened.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await place.left.wait()


@scenario
async def test_parts_of_a_fragment_are_fetched(one: End, other: End) -> None:
    other.owner.parts = [b"x" * 200_000, b"tail"]
    assert await one.transport.fetch_part(other.record, "fragment:1:ab", 0, 200_000, TIMEOUT) == b"x" * 200_000
    assert await one.transport.fetch_part(other.record, "fragment:1:ab", 1, 4, TIMEOUT) == b"tail"
    assert await one.transport.fetch_part(other.record, "shard:ab:3", 1, 4, TIMEOUT) == b"tail"
    with pytest.raises(BadPayload, match="length"):
        await one.transport.fetch_part(other.record, "fragment:1:ab", 1, 5, TIMEOUT)
    with pytest.raises(PartnerRefused, match="gone"):
        await one.transport.fetch_part(other.record, "fragment:1:cd", 0, 4, TIMEOUT)


@scenario
async def test_a_dead_peer_is_lost(one: End, other: End) -> None:
    await other.close()
    with pytest.raises(PartnerLost):
        await one.transport.join_round(other.record, Join(KEY, BASE), 3.0)
    with pytest.raises(PartnerLost):
        await one.transport.contribute(other.record, opening(0), None, Mean(2), 3.0)


@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_real_groups_exchange_over_it(make: Any, codec: str) -> None:
    """Three members, one of which cannot be dialled, get bit-identical results."""

    async def main() -> None:
        network = Network(link=Link("near", 100e6, 100e6, 0.0005))
        members = [await _member(make, network, codec, number != 2) for number in range(3)]
        for member in members:
            member.eyes.known = {other.record.peer_id: other.record for other in members if other is not member}
        now, key = RunClock().now(), RoundKey(0, 0)
        values = [torch.full((1000,), float(number)) for number in range(3)]
        async with asyncio.timeout(90):
            got = await asyncio.gather(
                *(
                    member.group.exchange(key, value, b"b" * 32, 100 * (number + 1), now, now + 10)
                    for number, (member, value) in enumerate(zip(members, values, strict=True))
                )
            )
        assert all(torch.equal(got[0].mean, one.mean) for one in got)
        assert torch.allclose(got[0].mean, torch.full((1000,), (0 * 1 + 1 * 2 + 2 * 3) / 6), rtol=1e-3)
        assert all(one.spans == one.named == [(0, 1000)] for one in got)
        assert all(not to_json(member.reputation.report())["refusals"] for member in members)
        for member in members:
            await member.end.close()

    asyncio.run(main())


@pytest.mark.parametrize("count", [3, 7])
def test_sparse_results_have_their_own_length(make: Any, count: int) -> None:
    """With three contributors the owner relays their parts, with seven it joins them. All members must get identical
    bits."""
    elements = 3 * 4096

    async def main() -> None:
        network = Network(link=Link("near", 100e6, 100e6, 0.0005))
        members = [await _member(make, network, "topk", True, elements) for _ in range(count)]
        for member in members:
            member.eyes.known = {other.record.peer_id: other.record for other in members if other is not member}
        now, key, maker = RunClock().now(), RoundKey(0, 0), torch.Generator().manual_seed(count)
        values = [torch.randn(elements, generator=maker) for _ in members]
        async with asyncio.timeout(90):
            got = await asyncio.gather(
                *(
                    member.group.exchange(key, value, b"b" * 32, 100, now, now + 10)
                    for member, value in zip(members, values, strict=True)
                )
            )
        assert all(torch.equal(got[0].mean, one.mean) for one in got)
        codec = EVERY["topk"]
        exact = torch.stack([codec.decode(codec.encode(value), elements) for value in values]).mean(0)
        assert float((got[0].mean - exact).norm() / exact.norm()) < 0.01
        assert all(one.spans == one.named == [(0, elements)] for one in got), [one.reason for one in got]
        assert all(not to_json(member.reputation.report())["refusals"] for member in members)
        for member in members:
            await member.end.close()

    asyncio.run(main())


@dataclass
class Eyes:
    known: dict[PeerId, PeerRecord] = field(default_factory=dict)
    banned: Callable[[], Container[PeerId]] = frozenset
    reach: Reach = Reach.DIRECT
    detector: FailureDetector = field(default_factory=lambda: FailureDetector(lambda: 0.0))

    @property
    def peers(self) -> dict[PeerId, PeerRecord]:
        return self.known

    def own_reach(self) -> Reach:
        return self.reach

    def relay_rate(self) -> float:
        return 1e6


@dataclass
class Real:
    end: End
    record: PeerRecord
    eyes: Eyes
    reputation: Reputation
    group: GroupMember


async def _member(make: Any, network: Network, codec: str, reachable: bool, elements: int = 1000) -> Real:
    identity = Identity.generate()
    end = await make(network, identity)
    record = end.record if reachable else replace(end.record, endpoints=(), reachable=False, relays=())
    eyes, reputation = Eyes(reach=record.reach), Reputation(RunClock().now, lambda event: None)
    terms = GroupTerms(
        run_id=RUN,
        me=PeerId(identity.peer_id),
        elements=(elements,),
        mean=MeanTerms(
            codec=EVERY[codec], result_codec=SparseResult(EVERY[codec]) if codec == "topk" else EVERY["fp32"]
        ),
        max_group=8,
    )
    signer, transport = KeySigner(identity), end.transport
    context = GroupContext(terms, signer, transport, RunClock(), eyes, reputation, asyncio.to_thread)
    end.owner.group = GroupMember(context)
    return Real(end, record, eyes, reputation, end.owner.group)
