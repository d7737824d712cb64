"""Places of a DHT node: however many entries one key, one block or other runs bring, our own run has room."""

from __future__ import annotations

import hashlib

from peer.discovery.entry_places import KEY_ENTRIES, SHARE, EntryPlaces, Holder, Place
from peer.protocol.messages import RunId

OWN, OTHER = RunId(b"r" * 32), RunId(b"o" * 32)
MOST = 40
NOW = 1000.0


def place(number: int, key: int | None = None) -> Place:
    return number.to_bytes(20, "big"), hashlib.sha256(str(number if key is None else key).encode()).digest()


def holder(run_id: RunId = OWN, block: str = "192.0.2.0/24", until: float = NOW + 120.0) -> Holder:
    return Holder(run_id, block, until)


def filled(run_id: RunId, count: int, block: str = "") -> tuple[EntryPlaces, list[Place]]:
    """Ask for a place for each of many keys, with a block each or all from one block. Return the places object and the
    keys that got one."""
    places = EntryPlaces(OWN, MOST)
    given = {n: places.enter(place(n), holder(run_id, block or f"block {n}"), NOW) for n in range(count)}
    return places, [place(n) for n, gone in given.items() if gone is not None]


def test_one_key_holds_as_many_entries_as_a_peer_has_places_and_its_latest_stay() -> None:
    places = EntryPlaces(OWN, MOST)
    gone = [places.enter(place(n, key=7), holder(OWN, f"{n}", NOW + n + 1), NOW) for n in range(KEY_ENTRIES + 3)]
    assert gone == [[]] * KEY_ENTRIES + [[place(n, key=7)] for n in range(3)]
    assert len(places) == KEY_ENTRIES


def test_other_runs_share_a_part_of_the_places() -> None:
    places, got = filled(OTHER, MOST)
    assert len(got) == len(places) == MOST // SHARE


def test_an_entry_of_the_own_run_takes_the_place_of_another_runs() -> None:
    places, got = filled(OTHER, MOST)
    mine = [places.enter(place(1000 + n), holder(OWN, f"home {n}"), NOW) for n in range(MOST)]
    assert mine[: MOST - len(got)] == [[]] * (MOST - len(got))
    assert all(taken is not None and taken[0] in got for taken in mine[MOST - len(got) :])
    assert places.enter(place(2000), holder(OTHER, "late"), NOW) is None


def test_one_block_gets_its_share_however_many_keys_it_makes() -> None:
    places, got = filled(OWN, MOST, block="here")
    assert len(got) == MOST // SHARE
    assert places.enter(place(1000), holder(OWN, "home"), NOW) == []


def test_when_full_the_block_that_holds_most_loses_its_youngest() -> None:
    places = EntryPlaces(OWN, MOST)
    for number in range(MOST):
        assert places.enter(place(number), holder(OWN, f"block {number // 8}"), NOW) == []
    assert places.enter(place(1000), holder(OWN, "home"), NOW) == [place(39)]
    assert places.enter(place(1001), holder(OWN, "block 0"), NOW) is None
    assert len(places) == MOST


def test_an_entry_keeps_its_place_and_counts_for_the_block_that_its_owner_calls_from() -> None:
    places = EntryPlaces(OWN, MOST)
    for number in range(MOST):
        places.enter(place(number), holder(OWN, f"block {number // 8}"), NOW, by_owner=False)
    assert places.enter(place(39), holder(OWN, "elsewhere", NOW + 130.0), NOW, by_owner=False) == []
    assert places.enter(place(1000), holder(OWN, "home"), NOW) == [place(39)]
    assert places.enter(place(1001), holder(OWN, "block 0"), NOW) is None
    for number in (0, 1):
        assert places.enter(place(number), holder(OWN, f"own {number}", NOW + 130.0), NOW) == []
    assert places.enter(place(1001), holder(OWN, "block 0"), NOW) is not None, "block 0 holds two less now"


def test_what_has_ended_leaves_its_place() -> None:
    places = EntryPlaces(OWN, MOST)
    for number in range(MOST):
        places.enter(place(number), holder(OWN, f"block {number // 8}", NOW + number + 1), NOW)
    assert places.enter(place(1000), holder(OWN, "block 0"), NOW + 1.0) == []
    assert len(places) == MOST
    assert places.enter(place(1001), holder(OWN, "block 0"), NOW + 1.5) is None
