"""Conformance suite for both directories: the DHT (three p2pd processes on 127.0.0.1) and the in-memory one. Scenarios
are written once, against `Bench`. The DHT is started once for the module, on a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import uvloop

from peer.discovery.dht_node.entry_store import EntryStore
from peer.discovery.dht_node.node import DhtNode, DhtNodeOptions, DictionaryDHTValue
from peer.discovery.dht_node.supervisor import RebuildTimes, SupervisorTimes
from peer.discovery.directory import DhtDirectory
from peer.discovery.keys import bucket_key, slot
from peer.discovery.multiaddr import claimed
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status
from peer.signed_record import InvalidRecord, seal, unseal
from peer.v1 import exchange_pb2 as pb

pytestmark = pytest.mark.processes

RUN = RunId(b"r" * 32)
OTHER_RUN = RunId(b"o" * 32)
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
PACE = SupervisorTimes(heal=1.0, alone=0.2, rebuild=RebuildTimes(first=0.05))


class Directory(Protocol):
    @property
    def dropped(self) -> Counter[str]: ...
    async def announce(self, record: PeerRecord) -> None: ...
    async def withdraw(self) -> None: ...
    async def peers(self) -> dict[PeerId, PeerRecord]: ...
    @property
    def good_until(self) -> float: ...


class Bench:
    """The peers of a scene: three of `RUN`, one of `OTHER_RUN`, and a hostile one that stores anything."""

    identities: list[Identity]
    directories: Sequence[Directory]
    foreign_identity: Identity
    foreign: Directory

    def now(self) -> float:
        raise NotImplementedError

    async def store(self, raw: bytes, owner: Identity) -> bool:
        """Ask the honest nodes to store these bytes as the record of `owner`. Return whether any did."""
        raise NotImplementedError

    async def plant(self, raw: bytes, owner: Identity) -> None:
        """Make the hostile node answer with these bytes as the record of `owner`."""
        raise NotImplementedError

    async def pause(self) -> None:
        """Let a moment of real or virtual time pass."""
        raise NotImplementedError

    def record(self, identity: Identity, **changes: Any) -> PeerRecord:
        now = self.now()
        record = PeerRecord(
            PeerId(identity.peer_id), RUN, ("127.0.0.1:9",), True, 1, 1, 0, 10.0, Status.TRAINING, now, now + 30.0
        )
        return replace(record, **changes)

    async def until(self, holds: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
        """Poll until `holds()`, or fail."""
        deadline = self.now() + within_s
        while not await holds():
            assert self.now() < deadline, "did not happen in time"
            await self.pause()

    async def sees(self, reader: int, identity: Identity, **fields: Any) -> bool:
        return any(
            record.peer_id == identity.peer_id and all(getattr(record, name) == value for name, value in fields.items())
            for record in (await self.directories[reader].peers()).values()
        )

    async def everybody_sees(self, identity: Identity, **fields: Any) -> bool:
        readers = [i for i in range(3) if self.identities[i] is not identity]
        return all([await self.sees(i, identity, **fields) for i in readers])

    async def nobody_sees(self, identity: Identity, **fields: Any) -> bool:
        return not any([await self.sees(i, identity, **fields) for i in range(3)])


class MemoryBench(Bench):
    def __init__(self) -> None:
        self.time = 1_750_000_000.0
        self.hub = MemoryDirectoryHub(self.now)
        self.identities = [Identity.generate() for _ in range(3)]
        self.directories = [MemoryDirectory(self.hub, identity, RUN) for identity in self.identities]
        self.foreign_identity = Identity.generate()
        self.foreign = MemoryDirectory(self.hub, self.foreign_identity, OTHER_RUN)

    def now(self) -> float:
        return self.time

    async def store(self, raw: bytes, owner: Identity) -> bool:
        return self.hub.store(raw)

    async def plant(self, raw: bytes, owner: Identity) -> None:
        self.hub.plant(RUN, PeerId(owner.peer_id), raw)

    async def pause(self) -> None:
        self.time += 0.05


class DhtBench(Bench):
    hostile: DhtNode

    def now(self) -> float:
        return time.time()

    async def store(self, raw: bytes, owner: Identity) -> bool:
        expiry = dht_expiry(_read_unverified(raw, owner))
        return await self.hostile.store(bucket_key(RUN), owner.public_key, raw, expiry, others_only=True)

    async def plant(self, raw: bytes, owner: Identity) -> None:
        for directory in self.directories:  # a node that once did not answer in time was removed from their tables
            await self.hostile.link(directory.addresses()[0], 5.0)
        storage = self.hostile._dht.protocol.storage
        storage.__init__()  # forget the records received from honest nodes
        packed = b"\xc5" + len(raw).to_bytes(2, "big") + raw
        expiry = dht_expiry(_read_unverified(raw, owner))
        assert storage.store_subkey(int.from_bytes(slot(bucket_key(RUN))), owner.public_key, packed, expiry)
        for directory in self.directories:
            directory._supervisor.node._holders.lost(
                bucket_key(RUN)
            )  # the next lookup asks all nodes, also the hostile one

    def claim_the_last_word(self) -> None:
        """Make the hostile node claim that its few entries never expire."""
        storage = self.hostile._dht.protocol.storage
        storage.__init__()
        assert storage.store(int.from_bytes(slot(bucket_key(RUN))), DictionaryDHTValue(), math.inf)

    async def pause(self) -> None:
        await asyncio.sleep(0.05)


def _read_unverified(raw: bytes, owner: Identity) -> PeerRecord:
    body = pb.RecordBody.FromString(pb.SignedRecord.FromString(raw).body)
    fields = (body.issued_at, body.expires_at)
    return PeerRecord(PeerId(owner.peer_id), RUN, (), False, 1, 1, 0, 0.0, Status.TRAINING, *fields)


def write_key(folder: Path, identity: Identity) -> Path:
    path = folder / f"{identity.peer_id}.key"
    path.write_bytes(identity.to_bytes())
    path.chmod(0o600)
    return path


async def start(folder: Path, identity: Identity, run_id: RunId = RUN, **options: Any) -> DhtDirectory:
    options = {"host_maddrs": LISTEN, "pace": PACE, **options}
    path = write_key(folder, identity)
    return await DhtDirectory(identity=identity, identity_path=path, run_id=run_id, **options).start()


@contextlib.asynccontextmanager
async def dht_bench(folder: Path) -> AsyncIterator[DhtBench]:
    bench = DhtBench()
    async with contextlib.AsyncExitStack() as stack:
        bench.identities = [Identity.generate() for _ in range(3)]
        started: list[DhtDirectory] = []
        for identity in bench.identities:
            known = started[0].addresses() if started else ()
            started.append(await start(folder, identity, initial_peers=known))
            stack.push_async_callback(started[-1].close)
        bench.directories = list(started)
        bench.foreign_identity, hostile = Identity.generate(), Identity.generate()
        foreign = await start(folder, bench.foreign_identity, OTHER_RUN, initial_peers=started[0].addresses())
        stack.push_async_callback(foreign.close)
        bench.foreign = foreign
        options = DhtNodeOptions(write_key(folder, hostile), hostile.public_key)
        bench.hostile = await DhtNode.start(options, LISTEN, gate=None)
        stack.push_async_callback(bench.hostile.close)
        for directory in started:
            assert await bench.hostile.link(directory.addresses()[0], 5.0)
        yield bench


Play = Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def dht_play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with asyncio.Runner() as runner:
        swarm = dht_bench(tmp_path_factory.mktemp("keys"))
        bench = runner.run(swarm.__aenter__())

        def play(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
            runner.run(asyncio.wait_for(scenario(bench), 120.0))

        yield play
        runner.run(swarm.__aexit__(None, None, None))


@pytest.fixture(params=["memory", "dht"])
def play(request: pytest.FixtureRequest) -> Play:
    if request.param == "dht":
        found: Play = request.getfixturevalue("dht_play")
        return found
    return lambda scenario: asyncio.run(scenario(MemoryBench()))


def test_an_announced_peer_is_seen_by_the_others_and_not_by_itself(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        for identity, directory in zip(bench.identities, bench.directories, strict=True):
            await directory.announce(bench.record(identity, round=3))
        for identity in bench.identities:
            await bench.until(lambda identity=identity: bench.everybody_sees(identity, round=3))
        for identity, directory in zip(bench.identities, bench.directories, strict=True):
            assert identity.peer_id not in await directory.peers()

    play(scenario)


def test_every_field_arrives(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        identity = bench.identities[0]
        endpoints = ("192.0.2.1:4000", "[2001:db8::1]:4000", "host.example:65535")
        sent = bench.record(identity, endpoints=endpoints, reachable=False, wire_max=3, round=7, tokens_per_s=0.25)
        await bench.directories[0].announce(sent)
        await bench.until(lambda: bench.everybody_sees(identity, round=7))
        assert (await bench.directories[1].peers()).get(identity.peer_id) == sent

    play(scenario)


def test_a_later_record_replaces_even_when_it_expires_earlier(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        identity, directory = bench.identities[0], bench.directories[0]
        first = bench.record(identity, round=10)
        await directory.announce(first)
        await bench.until(lambda: bench.everybody_sees(identity, round=10))
        later = first.issued_at + 0.01
        await directory.announce(replace(first, round=11, issued_at=later, expires_at=later + 20.0))
        await bench.until(lambda: bench.everybody_sees(identity, round=11))
        assert await bench.nobody_sees(identity, round=10)

    play(scenario)


def test_an_earlier_record_does_not_come_back(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        identity = bench.identities[0]
        old = seal(bench.record(identity, round=20), identity)
        await bench.pause()
        await bench.directories[0].announce(bench.record(identity, round=21))
        await bench.until(lambda: bench.everybody_sees(identity, round=21))
        assert not await bench.store(old, identity)
        await bench.plant(old, identity)
        assert await bench.everybody_sees(identity, round=21)

    play(scenario)


def test_a_withdrawn_peer_disappears_and_can_come_back(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        identity, directory = bench.identities[1], bench.directories[1]
        await directory.announce(bench.record(identity))
        await bench.until(lambda: bench.everybody_sees(identity))
        await directory.withdraw()
        await bench.until(lambda: bench.nobody_sees(identity), within_s=3.0)
        await bench.pause()
        await directory.announce(bench.record(identity, round=31))
        await bench.until(lambda: bench.everybody_sees(identity, round=31))

    play(scenario)


def test_an_expired_record_disappears(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        identity = bench.identities[2]
        record = bench.record(identity, round=40, expires_at=bench.now() + 1.5)
        await bench.directories[2].announce(record)
        await bench.until(lambda: bench.sees(0, identity, round=40), within_s=1.5)
        await bench.until(lambda: bench.nobody_sees(identity, round=40), within_s=5.0)
        assert bench.now() >= record.expires_at

    play(scenario)


def test_none_of_the_records_expires_before_what_is_promised(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        one, other, reader = bench.identities[0], bench.identities[2], bench.directories[1]
        early = bench.record(one, round=50, expires_at=bench.now() + 5.0)
        await bench.directories[0].announce(early)
        await bench.directories[2].announce(bench.record(other, round=50))
        await bench.until(lambda: bench.sees(1, one, round=50))
        await bench.until(lambda: bench.sees(1, other, round=50))
        assert reader.good_until == early.expires_at
        await bench.pause()
        await bench.directories[0].announce(bench.record(one, round=51))
        await bench.until(lambda: bench.sees(1, one, round=51))
        latest = (await reader.peers()).values()
        assert bench.now() < reader.good_until <= min(record.expires_at for record in latest)

    play(scenario)


def test_a_foreign_run_is_not_listed(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        stranger = bench.foreign_identity
        await bench.foreign.announce(bench.record(stranger, run_id=OTHER_RUN))
        await bench.directories[0].announce(bench.record(bench.identities[0]))
        await bench.until(lambda: bench.everybody_sees(bench.identities[0]))
        assert await bench.nobody_sees(stranger)
        assert await bench.foreign.peers() == {}

        smuggled = seal(bench.record(stranger, run_id=OTHER_RUN), stranger)
        await bench.plant(smuggled, stranger)
        assert await bench.nobody_sees(stranger)

    play(scenario)


def forgeries(record: PeerRecord, owner: Identity, forger: Identity) -> dict[str, bytes]:
    honest = pb.SignedRecord.FromString(seal(record, owner))
    body = pb.RecordBody.FromString(honest.body)
    body.round = 666
    changed = pb.SignedRecord(public_key=honest.public_key, body=body.SerializeToString(), signature=honest.signature)
    forged = pb.SignedRecord(
        public_key=honest.public_key,
        body=body.SerializeToString(),
        signature=forger.sign(b"peer record v1", changed.body),
    )
    body.expires_at = body.issued_at + MAX_RECORD_TTL_S + 1.0
    endless = pb.SignedRecord(
        public_key=honest.public_key,
        body=body.SerializeToString(),
        signature=owner.sign(b"peer record v1", body.SerializeToString()),
    )
    found = {"body changed": changed, "signed by another": forged, "expiry beyond the largest": endless}
    return {name: signed.SerializeToString() for name, signed in found.items()}


@pytest.mark.parametrize("kind", ["body changed", "signed by another", "expiry beyond the largest"])
def test_a_bad_record_is_refused_when_stored_and_when_read(play: Play, kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        victim, forger = bench.identities[0], Identity.generate()
        await bench.directories[0].announce(bench.record(victim, round=50))
        await bench.until(lambda: bench.everybody_sees(victim, round=50))
        await bench.pause()
        raw = forgeries(bench.record(victim, round=51), victim, forger)[kind]
        with pytest.raises(InvalidRecord):
            unseal(raw)

        assert not await bench.store(raw, victim), "an honest node took it"
        assert await bench.everybody_sees(victim, round=50)

        before = [directory.dropped.total() for directory in bench.directories]

        async def met() -> bool:
            await bench.plant(raw, victim)
            assert await bench.nobody_sees(victim, round=666)
            after = [directory.dropped.total() for directory in bench.directories]
            return all(b < a for b, a in zip(before, after, strict=True))

        await bench.until(met)  # on a busy machine a look may end before the hostile node has answered

    play(scenario)


def test_a_record_nobody_would_believe_is_refused_at_once(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        identity = bench.identities[0]
        endless = bench.record(identity, expires_at=bench.now() + MAX_RECORD_TTL_S + 5.0)
        with pytest.raises(InvalidRecord, match="expiry"):
            await bench.directories[0].announce(endless)

    play(scenario)


def test_one_hostile_answer_does_not_hide_the_others(dht_play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        assert isinstance(bench, DhtBench)
        for identity, directory in zip(bench.identities, bench.directories, strict=True):
            await directory.announce(bench.record(identity, round=60))
        for identity in bench.identities:
            await bench.until(lambda identity=identity: bench.everybody_sees(identity, round=60))
        bench.claim_the_last_word()
        reader = bench.directories[0]._supervisor.node
        reader._dht.protocol.storage = EntryStore(RecordGate(bench.now))
        table = reader._dht.protocol.routing_table
        for node_id in list(table.peer_id_to_uid.values()):
            if node_id != bench.hostile._dht.node_id:
                del table[node_id]
        assert len(table.peer_id_to_uid) == 1, "only the hostile node is asked first"
        found = {unseal(raw).peer_id for raw in await reader.find(bucket_key(RUN))}
        assert found >= {identity.peer_id for identity in bench.identities}

    dht_play(scenario)


def run(
    scenario: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(scenario, 40.0))


async def meets(reader: DhtDirectory, other: Identity, within_s: float, **fields: Any) -> None:
    """Poll until `reader` lists `other` with these fields."""
    bench = DhtBench()
    bench.directories = [reader]
    await bench.until(lambda: bench.sees(0, other, **fields), within_s)


async def pair(folder: Path, stack: contextlib.AsyncExitStack) -> tuple[list[Identity], list[DhtDirectory]]:
    identities = [Identity.generate() for _ in range(2)]
    first = await start(folder, identities[0], cache_path=folder / "first.json")
    stack.push_async_callback(first.close)
    second = await start(folder, identities[1], initial_peers=first.addresses(), cache_path=folder / "second.json")
    stack.push_async_callback(second.close)
    return identities, [first, second]


def test_a_killed_p2pd_is_rebuilt_under_the_same_name_and_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            (own, other), (killed, reader) = await pair(tmp_path, stack)
            await killed.announce(DhtBench().record(own, round=1))
            await reader.announce(DhtBench().record(other, round=1))
            await meets(reader, own, 10.0, round=1)
            await meets(killed, other, 10.0, round=1)
            bench = DhtBench()
            await bench.until(lambda: done(other.peer_id in (tmp_path / "first.json").read_text()))
            pid, address = killed.helper_pid, killed.addresses()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            struck = time.monotonic()
            await bench.until(lambda: done(killed.helper_pid != pid))
            # The directory still has its peers, announces our record once the new helper runs, and raises nothing.
            assert list(await killed.peers()) == [other.peer_id]
            await killed.announce(bench.record(own, round=2))
            await meets(reader, own, 10.0, round=2)
            assert time.monotonic() - struck < 5.0
            assert killed.addresses() == address
            assert killed.helper_pid not in (None, pid)

    run(scenario())


async def done(value: bool) -> bool:
    return value


def test_a_dead_bootstrap_is_no_error_and_is_joined_when_it_appears(tmp_path: Path) -> None:
    async def scenario() -> None:
        bootstrap, own = Identity.generate(), Identity.generate()
        with claimed(LISTEN) as listen:
            pass
        early = await start(tmp_path, own, initial_peers=[f"{listen[0]}/p2p/{bootstrap.peer_id}"])
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(early.close)
            assert early.neighbours() == 0
            assert early.trouble
            assert await early.peers() == {}
            await early.announce(DhtBench().record(own, round=5))
            late = await start(tmp_path, bootstrap, host_maddrs=listen)
            stack.push_async_callback(late.close)
            await meets(late, own, 15.0, round=5)
            await DhtBench().until(lambda: done(early.neighbours() == 1 and not early.trouble))

    run(scenario())


def test_the_cached_addresses_replace_a_dead_bootstrap(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            (first, second), (kept, closed) = await pair(tmp_path, stack)
            await DhtBench().until(lambda: done((tmp_path / "second.json").exists()))
            await closed.close()
            back = await start(tmp_path, second, cache_path=tmp_path / "second.json")
            stack.push_async_callback(back.close)
            await kept.announce(DhtBench().record(first, round=8))
            await meets(back, first, 10.0, round=8)

    run(scenario())


@pytest.mark.nightly
def test_it_works_on_uvloop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            (own, _), (first, second) = await pair(tmp_path, stack)
            assert "uvloop" in type(asyncio.get_running_loop()).__module__
            await first.announce(DhtBench().record(own, round=4))
            await meets(second, own, 10.0, round=4)
            pid = first.helper_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await DhtBench().until(lambda: done(first.helper_pid not in (None, pid)))

    run(scenario(), uvloop.new_event_loop)
