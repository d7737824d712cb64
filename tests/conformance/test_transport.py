"""Conformance suite for both transports: gRPC over loopback TLS, and the in-memory network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from blake3 import blake3

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.lab.sim.links import Link
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.ports.directory import Shown
from peer.protocol.messages import (
    ARTIFACT_PREFIX,
    MAX_SHOWN_RECORDS,
    Answer,
    Offer,
    PayloadDigests,
    PeerId,
    PeerRecord,
    PeerTimings,
    Piece,
    Reach,
    RelayAddress,
    RoundKey,
    RunId,
    StateIndex,
    Status,
    SwapReport,
    Verdict,
)
from peer.protocol.pair.receipt import (
    MAX_SHOWN,
    ShownReceipt,
    SignedOpinion,
    SwapOpinion,
    SwapStatement,
    Transferred,
)
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.state.artifacts.server import ArtifactServer
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import RelayPolicy, TransportPolicy
from tests.support.cutting_relay import Wire, before

RUN = RunId(b"R" * 32)
KEY = RoundKey(7, 0)
TIMEOUT = 10.0


@dataclass
class Owner:
    """A handler that answers as the test sets."""

    answer: Answer = field(default_factory=lambda: Answer(Verdict.LOCKED))
    swap_answer: Answer = field(default_factory=lambda: Answer(Verdict.LOCKED))
    held: tuple[bytes, bytes] | None = None
    index: StateIndex | None = None
    pieces: list[bytes] = field(default_factory=list)
    offers: list[tuple[PeerId, Offer]] = field(default_factory=list)
    met: list[PeerRecord] = field(default_factory=list)
    known: dict[PeerId, tuple[PeerRecord | None, float | None]] = field(default_factory=dict)
    """Its answers to vouch calls, by the peer that is asked about."""
    shelf: ArtifactServer | None = None
    signed: dict[tuple[PeerId, RoundKey], SignedOpinion] = field(default_factory=dict)
    """Its answers to partners that sign a swap."""
    heard: list[tuple[PeerId, SignedOpinion]] = field(default_factory=list)
    shown: list[ShownReceipt] = field(default_factory=list)
    callers: list[tuple[PeerId, Shown]] = field(default_factory=list)
    """(caller, shown record) of each call that asked for peers."""

    summaries: list[tuple[PeerId, bytes]] = field(default_factory=list)
    summary_answer: str = ""

    def on_hello(self, record: PeerRecord) -> None:
        self.met.append(record)

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        self.offers.append((sender, offer))
        return self.answer

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return self.swap_answer

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return self.known.get(about, (None, None))

    def on_receipt(self, sender: PeerId, signed: SignedOpinion) -> SignedOpinion | None:
        self.heard.append((sender, signed))
        return self.signed.get((sender, signed.key))

    def shown_receipts(self) -> list[ShownReceipt]:
        return self.shown

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        self.summaries.append((caller, raw))
        return self.summary_answer

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return [(b"%d" % number, head) for number in range(held, 3)]

    def on_papers(self, held: Sequence[bytes]) -> list[bytes]:
        return [paper for paper in (b"start", b"digest") if paper not in held]

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        self.callers.append((caller, shown))
        return [b"record %d" % number for number in range(30)]

    def on_manifest(self) -> tuple[bytes, bytes] | None:
        return self.held

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        return self.index

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        return [False] * len(digests) if self.shelf is None else self.shelf.on_artifacts(digests)

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        if snapshot.startswith(ARTIFACT_PREFIX):
            return None if self.shelf is None else self.shelf.on_piece(snapshot, piece)
        return memoryview(self.pieces[piece]) if piece < len(self.pieces) else None


@dataclass
class End:
    """One peer of a test."""

    record: PeerRecord
    owner: Owner
    transport: Any
    close: Callable[[], Awaitable[None]]
    weak: PeerRecord
    """Its record with an endpoint whose link the test can break."""
    sever: Callable[[], None]
    mend: Callable[[], None]
    after: Callable[[int, Callable[[], None]], None]
    """Call a function once this peer has sent about the given number of bytes."""


def record_of(peer: str, endpoint: str) -> PeerRecord:
    now = RunClock().now()
    return PeerRecord(PeerId(peer), RUN, (endpoint,), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)


async def grpc_end(network: Network) -> End:
    identity, owner, stack, wire = Identity.generate(), Owner(), contextlib.AsyncExitStack(), Wire()
    transport = GrpcTransport(identity, RUN, owner, RunClock().now, TransportPolicy(relaying=RelayPolicy(rate=1e9)))
    transport.begin_run(RunTerms(b"L" * 32, 2**26))
    port = await transport.start("127.0.0.1", 0)
    where = await stack.enter_async_context(before(f"127.0.0.1:{port}", wire))
    stack.push_async_callback(transport.close)
    record = record_of(identity.peer_id, f"127.0.0.1:{port}")
    weak = replace(record, endpoints=(where,))
    return End(record, owner, transport, stack.aclose, weak, wire.sever, wire.mend, wire.when)


async def relayed_end(network: Network) -> End:
    """Create a closed peer that others call over its relay."""
    end, relay = await grpc_end(network), await grpc_end(network)
    granted = asyncio.Event()
    holding = asyncio.create_task(end.transport.hold_reservation(relay.record, lambda rate, word: granted.set()))
    await granted.wait()

    async def close() -> None:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await end.close()
        await relay.close()

    closed = replace(end.record, endpoints=(), reachable=False)
    here, there = (RelayAddress(one.peer_id, one.endpoints[0]) for one in (relay.record, relay.weak))
    return replace(
        relay,
        record=replace(closed, relays=(here,)),
        weak=replace(closed, relays=(there,)),
        owner=end.owner,
        transport=end.transport,
        close=close,
    )


async def memory_end(network: Network) -> End:
    identity, owner = Identity.generate(), Owner()
    me = PeerId(identity.peer_id)
    transport, cut = MemoryTransport(network, me, owner, RunClock()), [False]
    earlier = network.connected
    network.connected = lambda one, other: not (cut[0] and me in (one, other)) and earlier(one, other)

    async def close() -> None:
        transport.close()

    def sever() -> None:
        cut[0] = True
        network.changed(me)
        asyncio.get_running_loop().call_soon(network.flows.break_off, me)  # current senders then wait again

    def mend() -> None:
        cut[0] = False
        network.changed(me)

    def after(nbytes: int, then: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(nbytes / network.link.up, then)

    record = record_of(identity.peer_id, "memory:0")
    return End(record, owner, transport, close, record, sever, mend, after)


@pytest.fixture(params=[grpc_end, relayed_end, memory_end], ids=["grpc", "relayed", "memory"])
def make(request: pytest.FixtureRequest) -> Callable[[Network], Awaitable[End]]:
    return request.param


@contextlib.asynccontextmanager
async def two(make: Any, rate: float = 100e6) -> AsyncIterator[tuple[End, End]]:
    """Create two connected peers. The first has the smaller id, so it dials in swaps."""
    network = Network(link=Link("near", rate, rate, 0.0005))
    ends = sorted([await make(network), await make(network)], key=lambda end: end.record.peer_id)
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            await end.close()


def scenario(test: Callable[[End, End], Awaitable[None]]) -> Callable[[Any], None]:
    def run(make: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(90), two(make) as (low, high):
                await test(low, high)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def swap_both(
    low: End,
    high: End,
    one: bytes,
    other: bytes,
    sizes: tuple[int, int] | None = None,
    timeout_s: float = TIMEOUT,
    low_dials: bool = True,
) -> tuple[Any, Any, BufferSink, BufferSink]:
    """Swap on both sides at once. The result of a side is its report or its exception."""
    to_low, to_high = sizes or (len(other), len(one))
    low_sink, high_sink = BufferSink(to_low), BufferSink(to_high)
    results = await asyncio.gather(
        low.transport.swap(high.record, KEY, BytesSource(one), low_sink, timeout_s, dial=low_dials),
        high.transport.swap(low.record, KEY, BytesSource(other), high_sink, timeout_s, dial=not low_dials),
        return_exceptions=True,
    )
    return results[0], results[1], low_sink, high_sink


@scenario
async def test_both_sides_know_the_digests_of_what_went_each_way(low: End, high: End) -> None:
    one, other = bytes(range(256)) * 3000, b"other" * 99
    low_report, high_report, _, _ = await swap_both(low, high, one, other)
    assert low_report.digests == PayloadDigests(blake3(other).digest(), blake3(one).digest())
    assert high_report.digests == PayloadDigests(blake3(one).digest(), blake3(other).digest())


@scenario
async def test_partners_give_each_other_their_signatures(low: End, high: End) -> None:
    ours = SignedOpinion(KEY, SwapOpinion(4096, accepted=True, gain=5), b"l" * 64)
    theirs = SignedOpinion(KEY, SwapOpinion(2**40, accepted=False), b"h" * 64)
    assert await low.transport.receipt(high.record, ours, TIMEOUT) is None
    high.owner.signed[low.record.peer_id, KEY] = theirs
    assert await low.transport.receipt(high.record, ours, TIMEOUT) == theirs
    assert high.owner.heard == [(low.record.peer_id, ours)] * 2


@scenario
async def test_a_peer_shows_what_others_signed_for_it(low: End, high: End) -> None:
    assert await low.transport.shown_receipts(high.record, TIMEOUT) == []
    payload, opinion = Transferred(b"d" * 32, 9), SwapOpinion(1, accepted=True)
    statement = SwapStatement(RUN, KEY, low.record.peer_id, high.record.peer_id, payload, payload, opinion)
    high.owner.shown = [ShownReceipt(statement, b"s" * 64)] * (MAX_SHOWN + 3)
    assert await low.transport.shown_receipts(high.record, TIMEOUT) == high.owner.shown[:MAX_SHOWN]


@scenario
async def test_a_summary_comes_to_its_node_and_the_answer_back(low: End, high: End) -> None:
    assert await low.transport.send_summary(high.record, b"signed", TIMEOUT) == ""
    high.owner.summary_answer = "rate"
    assert await low.transport.send_summary(high.record, b"again", TIMEOUT) == "rate"
    assert high.owner.summaries == [(low.record.peer_id, b"signed"), (low.record.peer_id, b"again")]
    high.owner.summary_answer = "forged"
    with pytest.raises(PartnerRefused) as refused:
        await low.transport.send_summary(high.record, b"not signed", TIMEOUT)
    assert refused.value.code == "record"


@scenario
async def test_each_side_hears_what_the_other_tells_of_itself(low: End, high: End) -> None:
    ours, theirs = PeerTimings(1000.0, 20.5, 3e6, 0.0), PeerTimings(1012.0, 32.5, 0.0, 7e5)

    async def swap(me: End, other: End, told: PeerTimings | None, round_: int, dial: bool) -> SwapReport:
        key = RoundKey(round_, 0)
        return await me.transport.swap(other.record, key, BytesSource(b"1234"), BufferSink(4), TIMEOUT, dial, told)

    one, other = await asyncio.gather(swap(low, high, ours, 0, True), swap(high, low, theirs, 0, False))
    assert (one.partner_timings, other.partner_timings) == (theirs, ours)
    absurd = replace(theirs, rate_in=1e300)
    one, other = await asyncio.gather(swap(low, high, ours, 1, True), swap(high, low, absurd, 1, False))
    assert (one.partner_timings, other.partner_timings) == (None, ours)
    one, other = await asyncio.gather(swap(low, high, ours, 2, True), swap(high, low, None, 2, False))
    assert (one.partner_timings, other.partner_timings) == (None, None)


@scenario
async def test_hello_measures_the_clock(low: End, high: End) -> None:
    welcome = await low.transport.hello(high.record, TIMEOUT)
    assert abs(welcome.clock_offset_s) < 1.0
    assert 0 <= welcome.round_trip_s < TIMEOUT


@scenario
async def test_an_offer_reaches_the_owner_and_its_answer_comes_back(low: End, high: End) -> None:
    high.owner.answer = Answer(Verdict.LATER, eta_s=1.5, reason="soon")
    assert await low.transport.offer(high.record, Offer(KEY), TIMEOUT) == high.owner.answer
    assert await low.transport.offer(high.record, Offer(KEY, withdraw=True), TIMEOUT) == high.owner.answer
    assert high.owner.offers == [(low.record.peer_id, Offer(KEY)), (low.record.peer_id, Offer(KEY, withdraw=True))]


@scenario
async def test_a_swap_gives_each_the_others_payload(low: End, high: End) -> None:
    one, other = bytes(range(256)) * 12_000, b"\x07" * (3 * 2**20 + 5)
    first, second, low_sink, high_sink = await swap_both(low, high, one, other)
    assert (bytes(low_sink.data), bytes(high_sink.data)) == (other, one)
    assert (first.bytes_received, second.bytes_received) == (len(other), len(one))
    assert first.sent_all
    assert second.sent_all


@scenario
async def test_the_amendments_one_lacks_are_handed_on(low: End, high: End) -> None:
    assert await low.transport.fetch_amendments(high.record, 1, b"h" * 32, TIMEOUT) == [
        (b"1", b"h" * 32),
        (b"2", b"h" * 32),
    ]
    assert await low.transport.fetch_amendments(high.record, 3, b"h" * 32, TIMEOUT) == []


@scenario
async def test_the_papers_one_lacks_are_handed_on(low: End, high: End) -> None:
    assert await low.transport.fetch_papers(high.record, [b"start"], TIMEOUT) == [b"digest"]
    assert await low.transport.fetch_papers(high.record, [], TIMEOUT) == [b"start", b"digest"]


@scenario
async def test_peers_are_shown_and_shown_to(low: End, high: End) -> None:
    given = await low.transport.fetch_peers(high.record, b"mine", TIMEOUT)
    assert given == [b"record %d" % number for number in range(MAX_SHOWN_RECORDS)]
    assert high.owner.callers == [(low.record.peer_id, b"mine")]


@scenario
async def test_either_side_may_dial(low: End, high: End) -> None:
    _, _, low_sink, high_sink = await swap_both(low, high, b"one", b"other", low_dials=False)
    assert (bytes(low_sink.data), bytes(high_sink.data)) == (b"other", b"one")


@scenario
async def test_another_peer_dials_us_when_asked(low: End, high: End) -> None:
    if high.record.reach is Reach.RELAYED:  # it could not see where we call from
        with pytest.raises(PartnerLost):
            await low.transport.probe(high.record, ("192.0.2.7:1",), TIMEOUT)
        return
    probed = await low.transport.probe(high.record, low.record.endpoints, TIMEOUT)
    assert probed.answered == probed.tried
    assert probed.answered[0] in low.record.endpoints


@scenario
async def test_whether_a_side_can_be_dialled_goes_with_offer_and_answer(low: End, high: End) -> None:
    high.owner.answer = Answer(Verdict.HELD, reach=Reach.NONE)
    assert await low.transport.offer(high.record, Offer(KEY, reach=Reach.NONE), TIMEOUT) == high.owner.answer
    assert high.owner.offers == [(low.record.peer_id, Offer(KEY, reach=Reach.NONE))]


@scenario
async def test_both_learn_whether_the_other_takes_them_for_proven(low: End, high: End) -> None:
    high.owner.answer = Answer(Verdict.HELD, proven=True)
    assert await low.transport.offer(high.record, Offer(KEY), TIMEOUT) == high.owner.answer
    high.owner.answer = Answer(Verdict.HELD)
    assert await low.transport.offer(high.record, Offer(KEY, proven=True), TIMEOUT) == high.owner.answer
    assert [offer.proven for _, offer in high.owner.offers] == [False, True]


@scenario
async def test_when_each_will_be_ready_goes_with_offer_and_answer(low: End, high: End) -> None:
    high.owner.answer = Answer(Verdict.LOCKED, eta_s=7.5)
    assert await low.transport.offer(high.record, Offer(KEY, eta_s=2.5), TIMEOUT) == high.owner.answer
    assert high.owner.offers == [(low.record.peer_id, Offer(KEY, eta_s=2.5))]


@scenario
async def test_swaps_follow_one_another(low: End, high: End) -> None:
    for number in range(5):
        one, other = bytes([number]) * 1000, bytes([number + 100]) * 1000
        _, _, low_sink, high_sink = await swap_both(low, high, one, other)
        assert (bytes(low_sink.data), bytes(high_sink.data)) == (other, one)


@scenario
async def test_whoever_is_ready_first_waits_for_the_other(low: End, high: End) -> None:
    for number, (first, second) in enumerate(((low, high), (high, low))):
        sink, key = BufferSink(4), RoundKey(number, 0)  # the first swap's call may still be ending
        early = asyncio.create_task(
            first.transport.swap(second.record, key, BytesSource(b"1234"), sink, TIMEOUT, dial=first is low)
        )
        await low.transport.offer(high.record, Offer(KEY), TIMEOUT)  # gives the early side time to begin to wait
        other_sink = BufferSink(4)
        await second.transport.swap(first.record, key, BytesSource(b"5678"), other_sink, TIMEOUT, dial=second is low)
        await early
        assert (bytes(sink.data), bytes(other_sink.data)) == (b"5678", b"1234")


@pytest.mark.parametrize("verdict", [Verdict.TAKEN, Verdict.REFUSED])
def test_a_swap_that_is_not_welcome_is_refused(make: Any, verdict: Verdict) -> None:
    async def main() -> None:
        async with two(make) as (low, high):
            high.owner.swap_answer = Answer(verdict, reason="not with you")
            with pytest.raises(PartnerRefused) as caught:
                await low.transport.swap(high.record, KEY, BytesSource(b"x"), BufferSink(1), TIMEOUT, dial=True)
            assert caught.value.code == verdict.value
            assert "not with you" in caught.value.reason

    asyncio.run(main())


@scenario
async def test_a_payload_of_another_length_is_refused_by_both(low: End, high: End) -> None:
    first, second, _, _ = await swap_both(low, high, b"12345", b"1234", sizes=(5, 5), timeout_s=3.0)
    assert isinstance(first, BadPayload)
    assert first.code == "length"
    assert not hasattr(second, "sent_all") or second.bytes_received == 5


@scenario
async def test_a_partner_that_never_comes_costs_the_timeout_and_no_more(low: End, high: End) -> None:
    for here, there in ((low, high), (high, low)):
        nobody = RoundKey(5 + (here is low), 0)
        with pytest.raises(PartnerLost):
            await here.transport.swap(there.record, nobody, BytesSource(b"x"), BufferSink(1), 0.3, dial=here is low)
    _, _, low_sink, high_sink = await swap_both(low, high, b"later", b"works")
    assert (bytes(low_sink.data), bytes(high_sink.data)) == (b"works", b"later")


# -- over a link that breaks in the middle -----------------------------------------------------------------------------

LARGE = bytes(range(256)) * 20_000


class Breaking(BufferSink):
    """A sink that runs a function when half of the bytes have arrived, and rejects repeated bytes."""

    def __init__(self, nbytes: int, halfway: Callable[[], None]) -> None:
        super().__init__(nbytes)
        self.halfway, self.upto = halfway, 0

    def write(self, offset: int, data: bytes) -> None:
        assert offset == self.upto, "every byte once, in order"
        super().write(offset, data)
        before, self.upto = self.upto, offset + len(data)
        if before < self.nbytes // 2 <= self.upto:
            self.halfway()


@pytest.mark.parametrize("away_s", [0.0, 0.7])
@pytest.mark.parametrize("low_dials", [True, False])
def test_a_swap_goes_on_when_the_link_is_back(make: Any, away_s: float, low_dials: bool) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), two(make, 4e6) as (low, high):

            def halfway() -> None:
                for end in (low, high):
                    end.sever()
                    asyncio.get_running_loop().call_later(away_s, end.mend)

            sinks = Breaking(len(LARGE), halfway), BufferSink(len(LARGE))
            reports = await asyncio.gather(*_both(low, high, sinks, TIMEOUT, low_dials))
            assert [report.sent_all for report in reports] == [True, True]
            assert bytes(sinks[0].data) == bytes(sinks[1].data) == LARGE

    asyncio.run(main())


def test_a_swap_whose_link_does_not_come_back_is_lost_by_its_deadline(make: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), two(make, 4e6) as (low, high):

            def halfway() -> None:
                low.sever()
                high.sever()

            began = asyncio.get_running_loop().time()
            sinks = Breaking(len(LARGE), halfway), BufferSink(len(LARGE))
            for error in await asyncio.gather(*_both(low, high, sinks, 2.5, True), return_exceptions=True):
                assert isinstance(error, PartnerLost), error
            assert asyncio.get_running_loop().time() - began < 4.0

    asyncio.run(main())


def test_a_partner_that_gave_up_meanwhile_is_lost(make: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), two(make, 4e6) as (low, high):

            def halfway() -> None:
                low.sever()
                high.sever()
                theirs.cancel()
                for end in (low, high):
                    asyncio.get_running_loop().call_later(0.5, end.mend)

            began = asyncio.get_running_loop().time()
            sinks = Breaking(len(LARGE), halfway), BufferSink(len(LARGE))
            ours, theirs = (asyncio.create_task(one) for one in _both(low, high, sinks, TIMEOUT, True))
            with pytest.raises(PartnerLost):
                await ours
            assert asyncio.get_running_loop().time() - began < 6.0
            await asyncio.wait({theirs})

    asyncio.run(main())


def test_a_piece_goes_on_when_the_link_is_back(make: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), two(make, 4e6) as (low, high):
            high.owner.pieces = [LARGE]
            index = StateIndex("snapshot", 3, b"L" * 32, (Piece(0, 1, len(LARGE), blake3(LARGE).digest()),))
            cuts = 0

            def cut() -> None:
                nonlocal cuts
                cuts += 1
                for end in (low, high):
                    end.sever()
                    asyncio.get_running_loop().call_later(0.1, end.mend)

            high.after(len(LARGE) // 2, cut)
            assert await low.transport.fetch_piece(high.weak, index, 0, TIMEOUT) == LARGE
            assert cuts == 1

    asyncio.run(main())


def _both(low: End, high: End, sinks: Sequence[BufferSink], timeout_s: float, low_dials: bool) -> list[Any]:
    return [
        low.transport.swap(high.weak, KEY, BytesSource(LARGE), sinks[0], timeout_s, dial=low_dials),
        high.transport.swap(low.weak, KEY, BytesSource(LARGE), sinks[1], timeout_s, dial=not low_dials),
    ]


@scenario
async def test_a_dead_peer_is_lost_at_once(low: End, high: End) -> None:
    await low.transport.offer(high.record, Offer(KEY), TIMEOUT)
    await high.close()
    began = asyncio.get_running_loop().time()
    with pytest.raises(PartnerLost):
        await low.transport.offer(high.record, Offer(KEY), TIMEOUT)
    assert asyncio.get_running_loop().time() - began < 5.0


@scenario
async def test_the_manifest_is_handed_over_or_refused(low: End, high: End) -> None:
    with pytest.raises(PartnerRefused) as caught:
        await low.transport.fetch_manifest(high.record, TIMEOUT)
    assert caught.value.code == "no_manifest"
    high.owner.held = (b"manifest", b"signature")
    assert await low.transport.fetch_manifest(high.record, TIMEOUT) == (b"manifest", b"signature")


@scenario
async def test_state_comes_in_verified_pieces(low: End, high: End) -> None:
    with pytest.raises(PartnerRefused) as caught:
        await low.transport.describe_state(high.record, TIMEOUT)
    assert caught.value.code == "no_state"
    good, bad = b"g" * 2_500_000, b"b" * 1000
    high.owner.pieces = [good, bad]
    pieces = (
        Piece(0, 1, len(good), blake3(good).digest()),
        Piece(1, 1, len(bad), blake3(b"other").digest()),
        Piece(2, 1, 4, b"\0" * 32),
    )
    high.owner.index = StateIndex("snapshot", 3, b"L" * 32, pieces)
    index = await low.transport.describe_state(high.record, TIMEOUT)
    assert index == high.owner.index
    assert await low.transport.fetch_piece(high.record, index, 0, TIMEOUT) == good
    with pytest.raises(BadPayload) as wrong:
        await low.transport.fetch_piece(high.record, index, 1, TIMEOUT)
    assert wrong.value.code == "digest"
    with pytest.raises(PartnerRefused) as gone:
        await low.transport.fetch_piece(high.record, index, 2, TIMEOUT)
    assert gone.value.code == "gone"


def test_a_peer_says_whether_it_reaches_another_that_does_not_answer_us(make: Any) -> None:
    async def main() -> None:
        network = Network(link=Link("near", 100e6, 100e6, 0.0005))
        witness, third, dead, *askers = [await make(network) for _ in range(6)]
        await dead.close()
        about = [end.record.peer_id for end in (third, dead)]
        witness.owner.known = {end.record.peer_id: (end.record, 100.0) for end in (third, dead)}
        try:
            reached = await askers[0].transport.vouch(witness.record, about[0], TIMEOUT)
            assert reached.reaches is True, reached
            gone = await askers[1].transport.vouch(witness.record, about[1], TIMEOUT)
            assert gone.reaches is False, gone
            assert gone.reason
            unknown = await askers[2].transport.vouch(witness.record, PeerId("12D3KooWnobody"), TIMEOUT)
            assert unknown.reaches is None, unknown
            with pytest.raises(PartnerLost):
                await askers[0].transport.vouch(dead.record, about[0], TIMEOUT)
        finally:
            for end in (witness, third, *askers):
                await end.close()

    asyncio.run(main())
