"""If there are many strangers, only a few of one address block are candidates."""

from __future__ import annotations

from collections import Counter

import pytest

from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.pair.address_quota import CLOSED_QUOTA, HERE, PLACES, QUOTA, block_of, over_quota
from peer.protocol.swarm.relay_word import ATTESTED_BY

RUN = RunId(b"q" * 32)


def record(name: str, endpoint: str = "", *, reachable: bool = True) -> PeerRecord:
    endpoints = (endpoint,) if endpoint else ()
    return PeerRecord(PeerId(name), RUN, endpoints, reachable, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


def swarm(*records: PeerRecord) -> dict[PeerId, PeerRecord]:
    return {one.peer_id: one for one in records}


def one_block(count: int, prefix: str = "198.51.100") -> list[PeerRecord]:
    return [record(f"{prefix} {number}", f"{prefix}.{number % 250}:4810") for number in range(count)]


def scattered(count: int) -> list[PeerRecord]:
    return [record(f"home {number}", f"203.0.{number}.7:4810") for number in range(count)]


@pytest.mark.parametrize(
    ("endpoint", "block"),
    [
        ("198.51.100.7:4810", "198.51.100.0/24"),
        ("[2001:db8:1:2ff::7]:4810", "2001:db8:1:200::/56"),
        ("[::ffff:198.51.100.7]:4810", "198.51.100.0/24"),
        ("127.0.0.1:1", HERE),
        ("[::1]:1", HERE),
        ("a.b.Example.ORG.:4810", "example.org"),
        ("memory:3", "memory"),
        ("", ""),
    ],
)
def test_blocks(endpoint: str, block: str) -> None:
    assert block_of(endpoint) == block


def test_up_to_so_many_strangers_there_is_no_quota() -> None:
    few = swarm(*one_block(PLACES))
    assert over_quota(RUN, 1, few, few, ()) == set()


def test_a_thousand_keys_of_one_block_have_few_places_and_homes_all_of_theirs() -> None:
    found = swarm(*one_block(1000), *scattered(40))
    out = over_quota(RUN, 1, found, found, ("192.0.2.1:4810",))
    left = [peer for peer in found if peer not in out]
    assert Counter(block_of(found[peer].endpoints[0]).startswith("198") for peer in left) == {True: QUOTA, False: 40}


def test_all_peers_draw_the_same_and_each_round_anew() -> None:
    found = swarm(*one_block(100))
    half = list(found)[:60]
    left = [set(found) - over_quota(RUN, round_, found, found, ()) for round_ in range(300)]
    for round_ in range(20):
        seen = set(half) - over_quota(RUN, round_, half, found, ())
        assert left[round_] & set(half) <= seen, "of those in sight, the same lots win"
    turns = Counter(peer for chosen in left for peer in chosen)
    assert len(turns) == 100, "everybody has a turn"
    assert max(turns.values()) < 30
    other = [set(found) - over_quota(RunId(b"o" * 32), round_, found, found, ()) for round_ in range(9)]
    assert other != left[:9]


def test_our_own_block_and_this_machine_are_exempt() -> None:
    found = swarm(*one_block(40), *[record(f"here {n}", f"127.0.0.1:{n}") for n in range(40)])
    assert over_quota(RUN, 1, found, found, ("198.51.100.200:4810",)) == set()
    out = over_quota(RUN, 1, found, found, ("192.0.2.200:4810",))
    assert len(out) == 40 - QUOTA
    assert all(peer.startswith("198") for peer in out)


def test_those_that_only_call_count_as_one_block_whatever_they_claim() -> None:
    found = swarm(
        *[record(f"closed {n}", f"203.0.{n}.7:4810", reachable=False) for n in range(50)],
        *[record(f"bare {n}") for n in range(50)],
    )
    assert len(found) - len(over_quota(RUN, 1, found, {}, ())) == CLOSED_QUOTA
    assert len(found) - len(over_quota(RUN, 1, found, found, ("203.0.1.1:1",))) == CLOSED_QUOTA


def closed_homes(count: int) -> dict[PeerId, PeerRecord]:
    return swarm(*[record(f"closed {n}", f"10.0.{n}.7:4810", reachable=False) for n in range(count)])


def test_those_that_a_relay_speaks_for_count_for_the_block_that_it_saw() -> None:
    homes = closed_homes(58)
    assert len(over_quota(RUN, 1, homes, homes, ())) == 58 - CLOSED_QUOTA, "nobody can check their addresses"
    seen = {peer: f"203.0.{number}.0/24" for number, peer in enumerate(homes)}
    assert over_quota(RUN, 1, homes, homes, (), lambda record: seen[record.peer_id]) == set()
    one_house = over_quota(RUN, 1, homes, homes, (), lambda record: "203.0.113.0/24")
    assert len(homes) - len(one_house) == QUOTA, "a house full of keys has the places of one block"


def test_all_that_one_trusted_relay_speaks_for_share_some_places() -> None:
    homes = closed_homes(58)
    out = over_quota(RUN, 1, homes, homes, (), lambda record: ATTESTED_BY + "friend")
    assert len(homes) - len(out) == CLOSED_QUOTA


def test_keys_that_nobody_speaks_for_take_no_place_of_the_others() -> None:
    homes = closed_homes(40)
    fresh = swarm(*[record(f"fresh {n}", reachable=False) for n in range(1000)])
    everybody = {**homes, **fresh}
    seen = {peer: f"203.0.{number}.0/24" for number, peer in enumerate(homes)}
    left = everybody.keys() - over_quota(RUN, 1, everybody, everybody, (), lambda r: seen.get(r.peer_id, ""))
    assert homes.keys() <= left
    assert len(left) == len(homes) + CLOSED_QUOTA


def test_a_peer_that_can_be_dialled_counts_for_its_own_address_whatever_relays_say() -> None:
    found = swarm(*one_block(100))
    out = over_quota(RUN, 1, found, found, (), lambda record: f"another block for {record.peer_id}")
    assert len(found) - len(out) == QUOTA
