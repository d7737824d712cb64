"""Abilities of the in-memory directory that the real one lacks: hiding records, partitioning the swarm and healing
it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status

RUN = RunId(b"r" * 32)
NAMES = [PeerId(name) for name in "abc"]


class Swarm:
    def __init__(self) -> None:
        self.time = 1000.0
        self.hub = MemoryDirectoryHub(lambda: self.time)
        self.peers = {name: MemoryDirectory(self.hub, name, RUN) for name in NAMES}

    def announce(self, name: PeerId, round_: int = 0, ttl: float = 30.0) -> None:
        record = PeerRecord(name, RUN, (), True, 1, 1, round_, 1.0, Status.TRAINING, self.time, self.time + ttl)
        asyncio.run(self.peers[name].announce(record))

    def seen_by(self, name: PeerId) -> dict[str, int]:
        return {record.peer_id: record.round for record in asyncio.run(self.peers[name].peers()).values()}


def test_views_can_differ() -> None:
    swarm = Swarm()
    for name in NAMES:
        swarm.announce(name)
    swarm.hub.hide = lambda reader, other: (reader, other) == ("a", "b")
    assert swarm.seen_by(NAMES[0]) == {"c": 0}
    assert swarm.seen_by(NAMES[1]) == {"a": 0, "c": 0}
    swarm.hub.hide = lambda reader, other: False
    assert swarm.seen_by(NAMES[0]) == {"b": 0, "c": 0}


def test_what_was_seen_can_be_hidden() -> None:
    swarm = Swarm()
    swarm.announce(NAMES[1])
    assert swarm.seen_by(NAMES[0]) == {"b": 0}
    swarm.hub.hide = lambda reader, other: True
    assert swarm.seen_by(NAMES[0]) == {}


def test_a_cut_leaves_what_was_known_until_it_expires_and_heals() -> None:
    swarm = Swarm()
    for name in NAMES:
        swarm.announce(name)
    assert swarm.seen_by(NAMES[0]) == {"b": 0, "c": 0}
    swarm.hub.partition([NAMES[0]], NAMES[1:])
    swarm.time += 20.0
    for name in NAMES:
        swarm.announce(name, round_=1)
    assert swarm.seen_by(NAMES[0]) == {"b": 0, "c": 0}
    assert swarm.seen_by(NAMES[1]) == {"c": 1}, "had not looked before the cut"
    swarm.time += 10.0
    assert swarm.seen_by(NAMES[0]) == {}
    swarm.hub.heal()
    assert swarm.seen_by(NAMES[0]) == {"b": 1, "c": 1}


def test_a_record_from_too_far_in_the_future_is_dropped_and_counted() -> None:
    swarm = Swarm()
    swarm.announce(NAMES[1])
    late = PeerRecord(NAMES[2], RUN, (), True, 1, 1, 0, 1.0, Status.TRAINING, swarm.time + 61, swarm.time + 90)
    swarm.hub.store_unsigned(late)
    assert swarm.seen_by(NAMES[0]) == {"b": 0}
    assert swarm.peers[NAMES[0]].dropped == {"future": 1}


def test_the_hub_keeps_the_latest_and_forgets_the_dead() -> None:
    swarm = Swarm()
    swarm.announce(NAMES[1], round_=5)
    old = PeerRecord(NAMES[1], RUN, (), True, 1, 1, 4, 1.0, Status.TRAINING, swarm.time - 1, swarm.time + 29)
    assert not swarm.hub.store_unsigned(old)
    assert swarm.hub.store_unsigned(replace(old, round=6, issued_at=swarm.time))
    swarm.time += MAX_RECORD_TTL_S + 1.0
    assert swarm.hub.visible(RUN, NAMES[0]) == []
