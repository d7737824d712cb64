"""A copied key, with real Hellos within one process: which process finds out, which one stops, and what records alone
can cause."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from peer.clock.run_clock import RunClock
from peer.discovery.record_store import RecordStore
from peer.errors import ExchangeError, KeyInUse, PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.key_watch import MAX_STARTS, PAUSE_S, KeyWatch
from peer.node.handler import RequestHandler
from peer.observe.events import Event, KeyShared
from peer.observe.status.notices import read_status
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal
from peer.signed_start import KeyStarts
from peer.transport.grpc_transport import GrpcTransport

RUN = RunId(b"K" * 32)
TIMEOUT_S = 20.0
FIX = "make a new one with: peer id new"


class NothingToDo(RequestHandler):
    """Fails if it is called about a peer."""

    def on_hello(self, record: PeerRecord) -> None:
        raise AssertionError(f"told of {record.peer_id}")


@dataclass
class Node:
    """One process: a transport, and the watch over its key."""

    key: Identity
    began_at: float
    transport: GrpcTransport = field(init=False)
    watch: KeyWatch = field(init=False)
    events: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    record: PeerRecord = field(init=False)

    async def __aenter__(self) -> Node:
        clock = RunClock()
        starts = KeyStarts(self.key, RUN, self.began_at)
        self.transport = GrpcTransport(self.key, RUN, NothingToDo(), clock.now, starts=starts)
        self.watch = KeyWatch(starts, self.transport.greet_copy, clock, self.events.append, self.said.append, FIX)
        port = await self.transport.start("127.0.0.1", 0)
        self.record = record_of(self.key, starts.nonce, f"127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()


def record_of(key: Identity, start: bytes, endpoint: str, issued_at: float | None = None) -> PeerRecord:
    now = time.time() if issued_at is None else issued_at
    return PeerRecord(
        peer_id=PeerId(key.peer_id),
        run_id=RUN,
        endpoints=(endpoint,),
        reachable=True,
        wire_min=WIRE_VERSION,
        wire_max=WIRE_VERSION,
        round=0,
        tokens_per_s=0.0,
        status=Status.TRAINING,
        issued_at=now,
        expires_at=now + 60,
        start=start,
    )


@contextlib.asynccontextmanager
async def copies() -> AsyncIterator[tuple[Node, Node]]:
    """Return two processes with the same key, of which the second started later."""
    key, now = Identity.generate(), time.time()
    async with asyncio.timeout(180), Node(key, now - 3600) as first, Node(key, now) as second:
        yield first, second


def test_the_later_process_stops_when_a_record_shows_it_the_other_one() -> None:
    async def main() -> None:
        async with copies() as (first, second):
            found = RecordStore(RUN, PeerId(second.key.peer_id), on_own_record=second.watch.note_own_record)
            found.add(seal(first.record, first.key), time.time())
            with pytest.raises(KeyInUse, match="this key is in use on another machine since 2") as error:
                await second.watch.run()
            assert error.value.fix == FIX
            assert error.value.exit_code == 36
            assert [event.stops for event in second.events if isinstance(event, KeyShared)] == [True]
            assert not first.watch.stops
            assert first.said[0].endswith("it began later, so it stops")
            assert (first.watch.shared, second.watch.shared) == (first.said[0], second.said[0])
            [notice] = read_status({"key_shared": first.watch.shared}).notices
            assert (notice.code, notice.sentence) == ("key_shared", first.said[0])

    asyncio.run(main())


def test_the_earlier_process_that_sees_the_others_record_stops_the_other_one() -> None:
    async def main() -> None:
        async with copies() as (first, second):
            watching = asyncio.create_task(first.watch.run())
            first.watch.note_own_record(second.record)
            with pytest.raises(KeyInUse):
                await second.watch.run()
            assert not watching.done()
            watching.cancel()
            await asyncio.wait({watching})

    asyncio.run(main())


def test_a_peer_that_both_call_brings_the_proof_by_their_next_calls() -> None:
    """Neither of the two can be dialled. They only call a third peer, which lets their tokens expire."""

    async def call(node: Node, third: Node) -> None:
        with pytest.raises(PartnerRefused) as refused:
            await node.transport.fetch_manifest(third.record, TIMEOUT_S)
        assert refused.value.code == "no_manifest"

    async def main() -> None:
        async with copies() as (first, second), Node(Identity.generate(), 0.0) as third:
            for caller in (first, second, first):
                await call(caller, third)
            assert not second.watch.stops
            await call(second, third)
            with pytest.raises(KeyInUse):
                await second.watch.run()
            assert not first.watch.stops
            assert not third.events

    asyncio.run(main())


def test_a_guest_with_the_key_of_a_daemon_is_no_conflict() -> None:
    async def main() -> None:
        nodes = Node(Identity.generate(), time.time()), Node(Identity.generate(), 0.0)
        async with asyncio.timeout(180), nodes[0] as daemon, nodes[1] as third:
            guest = GrpcTransport(daemon.key, RUN, RequestHandler(), RunClock().now)
            for caller in (daemon.transport, guest, daemon.transport, guest):
                await caller.hello(third.record, TIMEOUT_S)
            await guest.greet_copy(daemon.record, TIMEOUT_S)
            await guest.close()
            assert not daemon.watch.stops
            assert not daemon.events

    asyncio.run(main())


def test_old_records_of_our_key_cost_one_call_each_and_stop_nobody() -> None:
    """An attacker replays our records from before a restart, and records with an address of its own."""
    greeted = list[float]()

    async def greet(record: PeerRecord, timeout_s: float) -> None:
        greeted.append(loop_time())
        raise PartnerLost("another key answers there")

    def loop_time() -> float:
        return asyncio.get_running_loop().time()

    async def main() -> None:
        clock = VirtualClock()
        key = Identity.generate()
        starts = KeyStarts(key, RUN, clock.now())
        watch = KeyWatch(starts, greet, clock, lambda event: None, lambda text: None, FIX)
        watching = asyncio.create_task(watch.run())
        old = [record_of(key, bytes([n]) * 16, "192.0.2.1:1", clock.now() - n) for n in range(1, MAX_STARTS)]
        for _ in range(200):
            for record in [
                *old,
                record_of(key, starts.nonce, "192.0.2.1:1", clock.now()),
                record_of(key, b"", "192.0.2.1:1", clock.now()),
            ]:
                watch.note_own_record(record)
            await clock.sleep(1.0)
        assert not watching.done()
        watching.cancel()
        await asyncio.wait({watching})
        assert 1 < len(greeted) <= len(old)
        assert all(after - before >= PAUSE_S for before, after in itertools.pairwise(greeted))

    run_virtual(main())


def test_a_stranger_at_the_address_of_a_record_cannot_answer_for_the_key() -> None:
    async def main() -> None:
        async with copies() as (first, second), Node(Identity.generate(), 0.0) as stranger:
            led_astray = record_of(second.key, b"o" * 16, stranger.record.endpoints[0])
            with pytest.raises(ExchangeError):
                await second.transport.greet_copy(led_astray, 3.0)
            assert not second.watch.stops
            assert not first.events

    asyncio.run(main())
