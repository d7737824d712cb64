"""Invalid input from a hostile peer ends in a typed refusal, a line in the journal, and a lower reputation of its
sender. The round continues without it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from peer.aio.threads import inline
from peer.clock.run_clock import RunClock
from peer.codec.registry import CODECS
from peer.errors import BadPayload, PartnerLost, PartnerSilent
from peer.exchange.pair.swap import PairSwap, PartnerTerms
from peer.identity import Identity
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.setting import LAYOUT, SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.reputation import SHOWN, Reputation
from peer.observe.events import CallerRefused, Event, PartnerFailed, StandingLowered
from peer.observe.status.codec import to_json
from peer.ports.transport import Transport
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport, Verdict
from peer.protocol.pair.stranger_budget import MOST_S, RESERVE_S, SHARE
from peer.protocol.policy.fitness import GRACE
from peer.protocol.policy.reputation import OUT_OF_FAVOUR
from peer.protocol.schedule import RoundClock
from peer.protocol.wire.frames import HEADER, Kind, pack
from peer.protocol.wire.payload import BufferSink, BytesSource, Sink, Source
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from peer.signed_record import seal
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.transport.server import admission as gate
from peer.transport.server.rate_limits import HELLOS_AT_ONCE
from peer.transport.server.swap_rendezvous import MAX_PARKED_OF_PEER
from peer.transport.server.tokens import LIFETIME_S
from peer.transport.wire import payload_stream as stream
from peer.transport.wire.refusals import eta_of
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, Refused, ended

RUN, OTHER_RUN = RunId(b"R" * 32), RunId(b"S" * 32)
KEY = RoundKey(1, 0)
ROUND_S = 20.0


class Owner:
    """A handler that accepts everything. `verdict` answers swaps."""

    def __init__(self) -> None:
        self.verdict = Verdict.LOCKED
        self.greeted: list[PeerRecord] = []

    def on_hello(self, record: PeerRecord) -> None:
        self.greeted.append(record)

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        return Answer(Verdict.HELD)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(self.verdict)

    def on_manifest(self) -> None: ...

    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return None, None

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return []

    def on_state(self, fresh: bool = False, wanted: str = "") -> None: ...

    def on_piece(self, snapshot: str, piece: int) -> None: ...


class Victim:
    """A serving peer with a journal and a clock that can be set."""

    def __init__(self) -> None:
        self.identity, self.owner, self.events, self.ahead = Identity.generate(), Owner(), list[Event](), 0.0
        self.me = PeerId(self.identity.peer_id)
        self.conduct = Reputation(self.now, self.events.append)
        policy = TransportPolicy(reputation=self.conduct)
        self.transport = GrpcTransport(self.identity, RUN, self.owner, self.now, policy)
        self.transport.begin_run(RunTerms(b"L" * 32, 2**20))
        self.endpoint = ""

    def now(self) -> float:
        return RunClock().now() + self.ahead

    def caller(self, identity: Identity | None = None) -> HostileCaller:
        return HostileCaller(self.endpoint, self.me, RUN, identity)

    def blamed(self, caller: HostileCaller) -> list[str]:
        """Return the codes of the journal's lines about this caller."""
        return [event.code for event in self.events if isinstance(event, StandingLowered) and event.peer == caller.me]

    def refused_addresses(self) -> list[tuple[str, str]]:
        return [(event.caller, event.code) for event in self.events if isinstance(event, CallerRefused)]

    async def swap(self, caller: HostileCaller) -> None:
        """Swap as our coordinator does when it is locked with the caller."""
        record = PeerRecord(caller.me, RUN, (), True, 1, 1, 0, 0.0, Status.TRAINING, self.now(), self.now() + 60)
        await self.transport.swap(record, KEY, BytesSource(b"12345678"), BufferSink(8), 3.0, False)


def attack(test: Callable[[Victim], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            victim = Victim()
            victim.endpoint = f"127.0.0.1:{await victim.transport.start('127.0.0.1', 0)}"
            try:
                async with asyncio.timeout(90):
                    await test(victim)
            finally:
                await victim.transport.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def sealed(identity: Identity, age_s: float = 0.0, run_id: RunId = RUN) -> bytes:
    now = RunClock().now() - age_s
    me = PeerId(identity.peer_id)
    return seal(PeerRecord(me, run_id, (), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 100), identity)


def torn(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


# -- Hello -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (lambda me: {"layout_digest": b"M" * 32}, "layout"),
        (lambda me: {"run_id": OTHER_RUN}, "wrong_run"),
        (lambda me: {"record": b"garbage"}, "record"),
        (lambda me: {"record": torn(sealed(me))}, "record"),
        (lambda me: {"record": sealed(Identity.generate())}, "record"),
        (lambda me: {"record": sealed(me, run_id=OTHER_RUN)}, "record"),
        (lambda me: {"record": sealed(me, age_s=60.0)}, "record"),
    ],
    ids=["layout", "foreign run", "garbled", "bad signature", "another's", "of another run", "replayed"],
)
def test_a_proven_caller_is_blamed_for_what_its_hello_says(
    changes: Callable[[Identity], dict[str, object]], code: str
) -> None:
    @attack
    async def attempt(victim: Victim) -> None:
        async with victim.caller() as caller:
            with pytest.raises(Refused) as caught:
                await caller.hello(**changes(caller.identity))
            assert caught.value.code == code
            assert len(caught.value.reason) > 10
            assert victim.blamed(caller) == [code]
            assert victim.owner.greeted == []
            assert to_json(victim.conduct.report())["refusals"][0]["caller"] == caller.me

    attempt()


@attack
async def test_an_honest_record_is_taken_and_blames_nobody(victim: Victim) -> None:
    async with victim.caller() as caller:
        assert len(await caller.hello(record=sealed(caller.identity), layout_digest=b"L" * 32)) == 32
        assert [record.peer_id for record in victim.owner.greeted] == [caller.me]
        assert victim.events == []


@attack
async def test_who_only_names_a_key_cannot_have_its_owner_blamed(victim: Victim) -> None:
    async with victim.caller() as caller:
        earlier = RUN + victim.identity.public_key + b"n" * 32
        for changes in ({"signed": earlier}, {"signer": Identity.generate()}):
            with pytest.raises(Refused) as caught:
                await caller.hello(**changes)
            assert caught.value.code == "bad_proof"
        with pytest.raises(Refused) as caught:
            await caller.hello(run_id=OTHER_RUN, signer=Identity.generate())
        assert caught.value.code == "wrong_run"
        assert victim.blamed(caller) == []
        assert victim.refused_addresses() == [("127.0.0.1", "bad_proof"), ("127.0.0.1", "wrong_run")]
        assert len(await caller.hello()) == 32, "and the owner is welcome"


@attack
async def test_a_token_that_ran_out_is_no_offence_and_an_invented_one_is_journaled(victim: Victim) -> None:
    async with victim.caller() as caller:
        token = await caller.hello()
        await caller.unary("Offer", token)
        victim.ahead = LIFETIME_S + 1
        with pytest.raises(Refused) as caught:
            await caller.unary("Offer", token)
        assert caught.value.code == "no_token"
        assert victim.events == []
        with pytest.raises(Refused) as caught:
            await caller.unary("Offer", b"x" * 32)
        assert caught.value.code == "no_token"
        assert victim.refused_addresses() == [("127.0.0.1", "no_token")]


# -- swaps -------------------------------------------------------------------------------------------------------------


def opening(nbytes: int) -> bytes:
    return pack(Kind.OPEN, 0, pb.SwapOpen(round=1, fragment=0, codec="bf16", nbytes=nbytes).SerializeToString())


WRONG_SUM = HEADER.pack(b"PEER", 1, 2, 0, 0, 8, 1) + b"12345678"


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"garbage"], "frame"),
        ([opening(2**40)], "length"),
        ([opening(0), pack(Kind.END, 0, b"\0" * 32)], "length"),
        ([opening(8), WRONG_SUM], "checksum"),
        ([opening(8), b"garbage"], "frame"),
        ([opening(8), WRONG_SUM[:20]], "frame"),
        ([opening(8), pack(Kind.CHUNK, 0, b"")], "length"),
        ([opening(8), pack(Kind.CHUNK, 0, b"123456789")], "length"),
        ([opening(8), pack(Kind.CHUNK, 0, b"12345678"), pack(Kind.END, 8, b"\0" * 32)], "digest"),
    ],
    ids=[
        "no opening",
        "2**40",
        "zero length",
        "checksum",
        "garbage",
        "half a header",
        "empty chunk",
        "too long",
        "digest",
    ],
)
def test_wrong_bytes_end_a_swap_by_name_on_both_sides(frames: list[bytes], code: str) -> None:
    @attack
    async def attempt(victim: Victim) -> None:
        async with victim.caller() as caller:
            token = await caller.hello()
            ours = asyncio.create_task(victim.swap(caller))
            refusal = await caller.swap(token, frames, hang=True)
            assert refusal.code == f"bad_payload:{code}"
            with pytest.raises(BadPayload) as caught:
                await ours
            assert caught.value.code == code

    attempt()


def test_half_a_payload_and_then_silence_ends_by_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.2)

    @attack
    async def attempt(victim: Victim) -> None:
        async with victim.caller() as caller:
            token = await caller.hello()
            ours = asyncio.create_task(victim.swap(caller))
            refusal = await caller.swap(token, [opening(8), pack(Kind.CHUNK, 0, b"1234")], hang=True)
            assert refusal.code == "timeout"
            with pytest.raises(PartnerSilent, match="in the middle") as caught:
                await ours
            assert caught.value.code == "silent"

    attempt()


@attack
async def test_a_swap_our_coordinator_gave_up_ends_with_a_typed_refusal(victim: Victim) -> None:
    async with victim.caller() as caller:
        token = await caller.hello()
        call = asyncio.create_task(caller.swap(token, [opening(8)], hang=True))
        record = PeerRecord(caller.me, RUN, (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)
        with pytest.raises(PartnerSilent):
            await victim.transport.swap(record, KEY, BytesSource(b"12345678"), BufferSink(8), 0.5, False)
        assert (await call).code == "timeout"


@attack
async def test_garbage_to_a_peer_that_expects_nothing_puts_the_sender_out(victim: Victim) -> None:
    async with victim.caller() as caller, victim.caller() as honest:
        token, good = await caller.hello(), await honest.hello()
        assert (await caller.swap(token, [b"garbage"])).code == "bad_payload:frame"
        assert victim.blamed(caller) == ["frame"]
        with pytest.raises(Refused) as caught:
            await caller.unary("Offer", token)
        assert caught.value.code == "standing"
        with pytest.raises(Refused, match=r"for 17\d s more") as caught:
            await caller.hello()
        assert caught.value.code == "standing"
        assert [entry["peer_id"] for entry in to_json(victim.conduct.report())["out_of_favour"]] == [caller.me]
        await honest.unary("Offer", good)
        victim.ahead = 200.0
        assert len(await caller.hello(clock=victim.now())) == 32, "and comes back with time"


def test_plain_silence_costs_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "STEP_TIMEOUT_S", 0.2)

    @attack
    async def attempt(victim: Victim) -> None:
        async with victim.caller() as caller:
            call = caller.open_hello()
            assert (await ended(call)).code == "timeout"
            assert victim.refused_addresses() == [("127.0.0.1", "timeout")]
            token = await caller.hello()
            for method in ("Offer", "FetchPiece"):
                assert (await ended(caller.open(method, token))).code == "timeout"
            assert victim.blamed(caller) == ["timeout"], "the second is counted, not written"
            assert victim.conduct.out_for_s(caller.me) == 0

    attempt()


# -- limits ------------------------------------------------------------------------------------------------------------


@attack
async def test_idle_streams_and_connections_leave_room_for_others(victim: Victim) -> None:
    host, _, port = victim.endpoint.partition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        async with victim.caller() as one, victim.caller() as two:
            token = await two.hello()
            calls = [one.open_hello() for _ in range(HELLOS_AT_ONCE)]
            while sum(victim.transport._service.admission.limits._greeting.values()) < HELLOS_AT_ONCE:
                await asyncio.sleep(0.01)
            assert (await ended(two.open_hello())).code == "limit"
            await two.unary("Offer", token)
            for call in calls:
                call.cancel()
            while victim.transport._service.admission.limits._greeting:
                await asyncio.sleep(0.01)
            assert len(await two.hello()) == 32
    finally:
        for opened in sockets:
            opened.close()


@attack
async def test_one_peer_cannot_park_swaps_for_everybody(victim: Victim) -> None:
    victim.owner.verdict = Verdict.LATER
    async with victim.caller() as caller, victim.caller() as honest:
        token, good = await caller.hello(), await honest.hello()
        body = pb.SwapOpen(round=5, fragment=0, codec="bf16", nbytes=8)
        parked = []
        for round_ in range(MAX_PARKED_OF_PEER):
            body.round = round_
            parked.append(caller.open("Swap", token))
            await parked[-1].write(pack(Kind.OPEN, 0, body.SerializeToString()))
        while len(victim.transport._service.swaps._slots) < MAX_PARKED_OF_PEER:
            await asyncio.sleep(0.01)
        for round_ in range(100, 110):
            body.round = round_
            assert (await caller.swap(token, [pack(Kind.OPEN, 0, body.SerializeToString())])).code == "busy"
        assert len(victim.transport._service.swaps._slots) == MAX_PARKED_OF_PEER, "a refused swap leaves nothing behind"
        theirs = honest.open("Swap", good)
        await theirs.write(opening(8))
        while len(victim.transport._service.swaps._slots) == MAX_PARKED_OF_PEER:
            await asyncio.sleep(0.01)
        for call in (*parked, theirs):
            call.cancel()


def test_a_flood_fills_neither_the_journal_nor_the_memory() -> None:
    events, time = list[Event](), [EPOCH]
    conduct = Reputation(lambda: time[0], events.append)
    for number in range(5000):
        conduct.refused("192.0.2.7", "bad_proof", f"try {number}")
        conduct.penalize(PeerId(f"peer-{number}"), "digest", "wrong bytes")
        time[0] += 0.001
    assert len(events) < 100
    report = to_json(conduct.report())
    assert len(report["refusals"]) <= SHOWN
    assert len(report["out_of_favour"]) <= SHOWN
    time[0] += 120.0
    conduct.refused("192.0.2.7", "bad_proof", "the last")
    last = events[-1]
    assert isinstance(last, CallerRefused)
    assert last.times == 5000, "what was not written is counted"


# -- the coordinator, in virtual time ----------------------------------------------------------------------------------


def simulate(spoil: Callable[[SimulatedSwarm, PeerId], None], rounds: int = 8) -> tuple[SimulatedPeer, SimulatedSwarm]:
    async def main() -> SimulatedSwarm:
        method = resolve(SyncSection(preset="noloco", codec="fp32"))
        clock = RoundClock("seconds", ROUND_S, 1, EPOCH)
        swarm = SimulatedSwarm(4, SwarmSetting(method=method, rounds=clock, total_rounds=rounds, seed=1))
        spoil(swarm, swarm.peers[0].peer_id)
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    return swarm.peers[0], swarm


def constant(value: float) -> Callable[[SimulatedSwarm, PeerId], None]:
    """Make the first peer send a constant in place of its params."""
    payload = np.full(LAYOUT.elements, value, dtype="<f4").tobytes()

    def spoil(swarm: SimulatedSwarm, liar: PeerId) -> None:
        def tamper(sender: PeerId, source: Source) -> Source:
            return BytesSource(payload) if sender == liar else source

        swarm.network.tamper = tamper

    return spoil


def too_long(swarm: SimulatedSwarm, liar: PeerId) -> None:
    swarm.network.tamper = lambda sender, source: BytesSource(b"0" * 4096) if sender == liar else source


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (constant(float("nan")), "not_finite"),
        (constant(float("inf")), "not_finite"),
        (constant(1e30), "norm"),
        (constant(10.0), "norm"),
        (too_long, "length"),
    ],
    ids=["NaN", "infinity", "exploded", "absurd", "other shape"],
)
def test_a_lying_partner_is_named_put_out_and_never_mixed_in(
    spoil: Callable[[SimulatedSwarm, PeerId], None], code: str
) -> None:
    liar, swarm = simulate(spoil)
    caught = 0
    for peer in swarm.peers[1:]:
        lowered = [event for event in peer.events if isinstance(event, StandingLowered)]
        failed = [event for event in peer.events if isinstance(event, PartnerFailed) and event.code == code]
        assert {(event.peer, event.code) for event in lowered} <= {(liar.peer_id, code)}
        assert all(event.score > OUT_OF_FAVOUR and event.out_s > 60 and event.reason for event in lowered)
        assert len(failed) == len(lowered) <= 1, "out of favour for all the rounds after the first offence"
        assert liar.peer_id not in peer.partners().values()
        assert peer.outcomes().total() == 8, "every round ended"
        assert peer.trainer.counters().seconds_waiting < ROUND_S / 4 + 8
        assert peer.ledger().imbalance == 0
        assert torch.isfinite(peer.outer.params).all()
        assert peer.outer.params.abs().max() < 2.0
        caught += len(lowered)
    assert caught >= 1
    honest = [partner for peer in swarm.peers[1:] for partner in peer.partners().values()]
    assert len(honest) >= 8, "the others go on with one another"


def test_a_stranger_that_locks_and_never_swaps_costs_a_small_part_of_the_time() -> None:
    def spoil(swarm: SimulatedSwarm, mute: PeerId) -> None:
        swarm.network.is_mute = lambda peer: peer == mute

    mute, swarm = simulate(spoil, rounds=24)
    caught = 0
    for peer in swarm.peers[1:]:
        lowered = [event for event in peer.events if isinstance(event, StandingLowered)]
        assert {event.peer for event in lowered} <= {mute.peer_id}
        assert {event.code for event in lowered} <= {"late", "lost"}
        assert peer.outcomes().total() == 24
        assert peer.ledger().imbalance == 0
        assert peer.trainer.counters().seconds_waiting < MOST_S + SHARE * 24 * ROUND_S + 24 * 0.1
        caught += len(lowered)
    assert caught >= 3


@pytest.mark.parametrize(
    ("said", "taken"), [(7.5, 7.5), (0.0, 0.0), (-1.0, 0.0), (1e9, 0.0), (float("inf"), 0.0), (float("nan"), 0.0)]
)
def test_a_promise_that_makes_no_sense_is_none(said: float, taken: float) -> None:
    assert eta_of(said) == taken


def test_a_stranger_that_promises_to_be_ready_is_waited_for_no_longer_than_an_honest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truly = MemoryTransport.offer
    liars = set[PeerId]()

    async def offer(ours: MemoryTransport, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer:
        offer = replace(offer, eta_s=1e4) if ours._me in liars else offer
        answer = await truly(ours, to, offer, timeout_s)
        return replace(answer, eta_s=1e4) if to.peer_id in liars else answer

    def spoil(swarm: SimulatedSwarm, mute: PeerId) -> None:
        liars.add(mute)
        swarm.network.is_mute = lambda peer: peer == mute

    monkeypatch.setattr(MemoryTransport, "offer", offer)
    mute, swarm = simulate(spoil, rounds=24)
    waited = [peer.trainer.counters().seconds_waiting for peer in swarm.peers[1:]]
    failures = [
        sum(isinstance(event, PartnerFailed) and event.peer == mute.peer_id for event in peer.events)
        for peer in swarm.peers[1:]
    ]
    assert sum(failures) >= 3
    for seconds, times in zip(waited, failures, strict=True):
        assert seconds < times * (MOST_S + GRACE * ROUND_S) + 24 * 0.1
        assert seconds < RESERVE_S + MOST_S + SHARE * 24 * ROUND_S + 24 * 0.1


@pytest.mark.parametrize(("held_s", "code"), [(1.0, "lost"), (4.0, "late")])
def test_a_partner_that_keeps_us_waiting_and_leaves_is_charged_for_the_waiting(
    held_s: float, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryTransport._swap

    def spoil(swarm: SimulatedSwarm, quitter: PeerId) -> None:
        async def swap(self: MemoryTransport, partner: PeerId, key: RoundKey, *rest: Any) -> SwapReport:
            if partner != quitter or key.round < 12:
                return await real(self, partner, key, *rest)
            await asyncio.sleep(held_s)
            raise PartnerLost("the connection broke")

        monkeypatch.setattr(MemoryTransport, "_swap", swap)

    quitter, swarm = simulate(spoil, rounds=24)
    for peer in swarm.peers[1:]:
        lowered = [event for event in peer.events if isinstance(event, StandingLowered)]
        assert {event.peer for event in lowered} <= {quitter.peer_id}
        if quitter.peer_id in [peer.partners().get(round_) for round_ in range(12)] and lowered:
            assert lowered[0].code == code, "from one it knew, it waited as long as from anybody"
        assert peer.trainer.counters().seconds_waiting < 0.1 * 24 * ROUND_S
    assert any(event.code == code for peer in swarm.peers for event in peer.events if isinstance(event, PartnerFailed))


@pytest.mark.parametrize(("every_s", "ends_after_s"), [(0.5, 10.0), (1e9, 8.0)], ids=["trickle", "first byte only"])
def test_a_partner_that_sends_too_slowly_is_given_up_long_before_the_budget(
    every_s: float, ends_after_s: float
) -> None:
    class Trickler:
        async def swap(
            self, partner: PeerRecord, key: RoundKey, source: Source, sink: Sink, timeout_s: float, *others: object
        ) -> SwapReport:
            for offset in range(sink.nbytes):
                sink.write(offset, b"x")
                await asyncio.sleep(every_s)
            raise AssertionError("the coordinator waited for all of it")

    async def alive() -> bool:
        return True

    async def main() -> float:
        own = torch.zeros(10_000_000)
        exchange = PairSwap(cast(Transport, Trickler()), VirtualClock(), CODECS["bf16"], inline, None)
        partner = PeerRecord(PeerId("p"), RUN, (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)
        began = asyncio.get_running_loop().time()
        assert exchange.budget_s(partner.peer_id, 2 * own.numel()) > 300
        with pytest.raises(PartnerSilent):
            await exchange.swap(PartnerTerms(partner, KEY, 2.0, True, alive), own, own, torch.zeros(own.numel()))
        return asyncio.get_running_loop().time() - began

    assert run_virtual(main()) < ends_after_s


def test_honest_partners_far_apart_are_no_liars() -> None:
    _, swarm = simulate(lambda swarm, peer: None)
    assert not [event for peer in swarm.peers for event in peer.events if isinstance(event, StandingLowered)]
