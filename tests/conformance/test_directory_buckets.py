"""A crowd in both directories: full buckets split, all peers are found in their bucket, and small buckets merge. In the
DHT the crowd announces through one p2pd and a reader uses another; the clock can be set."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest

from peer.discovery.dht_node.supervisor import SupervisorTimes
from peer.discovery.directory import DhtDirectory
from peer.identity import Identity
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.swarm.buckets import SPLIT, DirectoryBuckets, across

pytestmark = pytest.mark.processes

RUN = RunId(b"r" * 32)
TTL_S = 45.0
MANY, SOME, LEFT = 150, 80, 6


class Directory(Protocol):
    async def announce(self, record: PeerRecord) -> None: ...
    async def peers(self) -> dict[PeerId, PeerRecord]: ...


class Crowd:
    """The peers of one run. The last of them reads through a node of its own."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.round = 0
        self.directories: dict[PeerId, Directory] = {}

    def now(self) -> float:
        return time.time() + self.ahead

    def buckets(self, peer: PeerId) -> DirectoryBuckets:
        directory = self.directories[peer]
        return directory._buckets if isinstance(directory, DhtDirectory) else directory.buckets  # type: ignore[attr-defined, no-any-return]

    async def announce(self) -> None:
        now = self.now()
        fields = (True, 1, 1, self.round, 1.0, Status.TRAINING, now, now + TTL_S)
        records = {peer: PeerRecord(peer, RUN, ("192.0.2.1:9",), *fields) for peer in self.directories}
        await asyncio.gather(*(directory.announce(records[peer]) for peer, directory in self.directories.items()))

    async def look(self) -> dict[PeerId, set[PeerId]]:
        return {peer: set(await d.peers()) for peer, d in self.directories.items()}

    def members(self) -> dict[str, set[PeerId]]:
        found: dict[str, set[PeerId]] = defaultdict(set)
        for peer in self.directories:
            found[self.buckets(peer).own].add(peer)
        return found


Gather = Callable[[Path], AbstractAsyncContextManager[Crowd]]


@contextlib.asynccontextmanager
async def in_memory(folder: Path) -> AsyncIterator[Crowd]:
    crowd = Crowd()
    hub = MemoryDirectoryHub(crowd.now, SPLIT)
    for identity in (Identity.generate() for _ in range(MANY)):
        crowd.directories[PeerId(identity.peer_id)] = MemoryDirectory(hub, identity, RUN)
    yield crowd


@contextlib.asynccontextmanager
async def in_the_dht(folder: Path) -> AsyncIterator[Crowd]:
    crowd, pace = Crowd(), SupervisorTimes(heal=1.0, alone=0.2)

    async def started(identity: Identity, *known: str) -> DhtDirectory:
        path = folder / f"{identity.peer_id}.key"
        path.write_bytes(identity.to_bytes())
        path.chmod(0o600)
        return await DhtDirectory(
            identity=identity,
            identity_path=path,
            run_id=RUN,
            initial_peers=known,
            host_maddrs=("/ip4/127.0.0.1/tcp/0",),
            now=crowd.now,
            pace=pace,
        ).start()

    first, *middle, last = (Identity.generate() for _ in range(SOME))
    async with contextlib.AsyncExitStack() as stack:
        shared = await started(first)
        stack.push_async_callback(shared.close)
        reader = await started(last, *shared.addresses())
        stack.push_async_callback(reader.close)
        crowd.directories[PeerId(first.peer_id)] = shared
        for identity in middle:
            unused = folder / "unused"
            other = DhtDirectory(identity=identity, identity_path=unused, run_id=RUN, now=crowd.now, pace=pace)
            other._supervisor = shared._supervisor
            crowd.directories[PeerId(identity.peer_id)] = other
        crowd.directories[PeerId(last.peer_id)] = reader
        yield crowd


@pytest.mark.parametrize("gather", [in_memory, in_the_dht], ids=["memory", "dht"])
def test_a_crowd_splits_finds_itself_and_merges(gather: Gather, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with gather(tmp_path) as crowd:
            await crowd.announce()
            for _ in range(8):  # each peer moves one bucket deeper per lookup
                await crowd.look()
                if max(map(len, crowd.members().values())) <= SPLIT:
                    break
            members = crowd.members()
            assert max(map(len, members.values())) <= SPLIT
            assert min(map(len, members)) >= 1, "too many for one bucket"

            crowd.round = 1
            await crowd.announce()
            seen = await crowd.look()
            for bits, own in members.items():
                facing = {p for p in seen if across(bits, 1).startswith(crowd.buckets(p).own)}
                for peer in own:
                    assert seen[peer] >= (own | facing) - {peer}

            crowd.directories = dict(list(crowd.directories.items())[-LEFT:])
            crowd.ahead += TTL_S + 5.0
            for _ in range(24):
                await crowd.announce()
                await crowd.look()
                if set(crowd.members()) == {""}:
                    break
            seen = await crowd.look()
            assert all(seen[peer] == crowd.directories.keys() - {peer} for peer in seen)

    asyncio.run(asyncio.wait_for(scenario(), 50.0))
