"""Strangers try to fill the store of a DHT node: real p2pd processes, and the store alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.discovery.dht_node.entry_store import EntryStore
from peer.discovery.dht_node.node import DHTID, DhtNode, DhtNodeOptions, PeerID
from peer.discovery.directory import DhtDirectory
from peer.discovery.entry_places import KEY_ENTRIES, MAX_ENTRIES
from peer.discovery.keys import bucket_key, slot
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal

RUN = RunId(b"r" * 32)
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
BATCH = 64
Entry = tuple[DHTID, bytes, bytes, float]


def record(identity: Identity, run_id: RunId, now: float) -> PeerRecord:
    return PeerRecord(PeerId(identity.peer_id), run_id, (), False, 1, 1, 0, 1.0, Status.TRAINING, now, now + 60.0)


def entry(identity: Identity, run_id: RunId, now: float) -> Entry:
    """Return an entry in wire form: slot, subkey, packed value, expiry."""
    made = record(identity, run_id, now)
    raw = seal(made, identity)
    packed = b"\xc4" + bytes([len(raw)]) + raw
    return DHTID.from_bytes(slot(bucket_key(run_id))), identity.public_key, packed, dht_expiry(made)


def of_many_runs(identity: Identity, count: int, now: float) -> Iterator[Entry]:
    return (entry(identity, RunId(n.to_bytes(32, "big")), now) for n in range(count))


def key_file(folder: Path, name: str) -> tuple[Identity, Path]:
    identity = Identity.generate()
    path = folder / name
    path.write_bytes(identity.to_bytes())
    return identity, path


async def flood(attacker: DhtNode, target: str, entries: list[Entry]) -> int:
    """Ask the target to store all entries. Return how many it claims to have stored."""
    stored = 0
    for first in range(0, len(entries), BATCH):
        slots, subkeys, values, expiries = zip(*entries[first : first + BATCH], strict=True)
        answer = await attacker._dht.protocol.call_store(
            PeerID.from_base58(target), slots, values, expiries, subkeys=subkeys
        )
        stored += sum(answer or ())
    return stored


async def joined(bootstrap: DhtDirectory, identity: Identity, path: Path) -> DhtDirectory:
    peers = bootstrap.addresses()
    return await DhtDirectory(
        identity=identity, identity_path=path, run_id=RUN, initial_peers=peers, host_maddrs=LISTEN
    ).start()


async def attack(folder: Path) -> None:
    owner, path = key_file(folder, "bootstrap")
    bootstrap = await DhtDirectory(identity=owner, identity_path=path, run_id=RUN, host_maddrs=LISTEN).start()
    stranger, path = key_file(folder, "stranger")
    attacker = await DhtNode.start(DhtNodeOptions(path, stranger.public_key), LISTEN, None)
    directories = [bootstrap]
    try:
        assert await attacker.link(bootstrap.addresses()[0], 5.0)
        await flood(attacker, owner.peer_id, list(of_many_runs(stranger, MAX_ENTRIES, time.time())))
        await attacker.close()
        honest = [key_file(folder, name) for name in ("first", "second")]
        directories += [await joined(bootstrap, *key) for key in honest]
        while len(await bootstrap.peers()) < len(honest):  # on a busy machine a store can be late
            for directory, (identity, _) in zip(directories[1:], honest, strict=True):
                await directory.announce(record(identity, RUN, time.time()))
        assert not bootstrap.dropped, "nobody of the own run was turned away"
    finally:
        await attacker.close()
        for directory in directories:
            await directory.close()


@pytest.mark.nightly
@pytest.mark.processes
def test_one_key_does_not_fill_a_node(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(attack(tmp_path), 60.0))


def held(store: EntryStore) -> int:
    return sum(len(found.value) for _, found in store.items())


def test_the_store_holds_what_has_a_place_and_nothing_else() -> None:
    now = time.time()
    store, stranger = EntryStore(RecordGate(time.time, RUN)), Identity.generate()
    for place, subkey, value, expiry in of_many_runs(stranger, 3 * KEY_ENTRIES, now):
        assert store.store_subkey(place, subkey, value, expiry)
    assert held(store) == KEY_ENTRIES == len(store._places)


def test_an_entry_said_again_or_replayed_leaves_no_trace() -> None:
    now = time.time()
    gate = RecordGate(time.time, RUN)
    store, owner = EntryStore(gate), Identity.generate()
    old, new = entry(owner, RUN, now - 5.0), entry(owner, RUN, now)
    assert store.store(*(old[i] for i in (0, 2, 3)), subkey=old[1])  # type: ignore[arg-type]
    assert store.store(new[0], new[2], new[3], subkey=new[1])
    for _ in range(100):
        assert not store.store(old[0], old[2], old[3], subkey=old[1])
        assert not store.store(new[0], new[2], new[3], subkey=new[1])
    assert not store.store(new[0], new[2], new[3]), "a value without a subkey is nobody's"
    found = store.get(new[0]).value
    assert found.get(owner.public_key).value == new[2]
    assert len(found.expiration_heap) <= 2
    assert not gate.refused


def test_a_full_store_counts_whom_it_turns_away() -> None:
    now = time.time()
    gate = RecordGate(time.time, RUN)
    store = EntryStore(gate)
    store._places._most = 4
    strangers = [entry(Identity.generate(), RunId(b"x" * 32), now) for _ in range(3)]
    assert [store.store(place, value, expiry, subkey=key) for place, key, value, expiry in strangers].count(True) == 1
    assert gate.refused == {"full": 2}
