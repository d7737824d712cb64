"""Tests of which peers are proven, by what, and how that is stored."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from peer.protocol.messages import PeerId, RoundKey, RunId
from peer.protocol.pair.proven import (
    BLOCK_ROUNDS,
    LEAST,
    MAX_BYTES,
    MAX_KEPT,
    NEEDED,
    VOUCHERS,
    ProvenPeers,
    unbiased,
    unpack,
)

RUN = RunId(b"r" * 32)
ONE, OTHER = PeerId("one"), PeerId("other")
FRIENDS = [PeerId(f"friend {number}") for number in range(VOUCHERS + 1)]


_rounds = itertools.count()


def vouch(proven: ProvenPeers, peer: PeerId, by: PeerId) -> None:
    """Record a receipt for a new round."""
    proven.vouched(peer, by, RoundKey(next(_rounds), 0))


def prove(proven: ProvenPeers, *who: PeerId) -> None:
    for peer in who:
        for _ in range(NEEDED):
            proven.accepted(peer)


def test_four_accepted_exchanges_prove_a_peer_and_three_do_not() -> None:
    proven = ProvenPeers()
    for _ in range(NEEDED - 1):
        proven.accepted(ONE)
    assert ONE not in proven
    proven.accepted(ONE)
    assert ONE in proven
    assert OTHER not in proven
    assert list(proven) == [ONE]


def test_receipts_of_three_proven_peers_prove_another() -> None:
    proven = ProvenPeers()
    prove(proven, *FRIENDS[: VOUCHERS - 1])
    for _ in range(9):
        for friend in FRIENDS:
            vouch(proven, ONE, friend)
    assert ONE not in proven, "those that proved nothing do not count, and nobody counts twice"
    prove(proven, FRIENDS[VOUCHERS - 1])
    vouch(proven, ONE, FRIENDS[VOUCHERS - 1])
    assert ONE in proven


def test_a_vouched_peer_and_the_peer_itself_vouch_for_nobody() -> None:
    proven = ProvenPeers()
    prove(proven, *FRIENDS[:VOUCHERS], ONE)
    for friend in FRIENDS[:VOUCHERS]:
        vouch(proven, FRIENDS[-1], friend)
    assert FRIENDS[-1] in proven
    for voucher in (*FRIENDS[1:VOUCHERS], FRIENDS[-1], OTHER):
        vouch(proven, OTHER, voucher)
    assert OTHER not in proven
    proven.revoke(ONE)
    for voucher in (*FRIENDS[: VOUCHERS - 1], ONE):
        vouch(proven, ONE, voucher)
    assert ONE not in proven


def test_a_disgraced_peer_is_a_stranger_and_so_are_those_it_stood_for() -> None:
    proven = ProvenPeers()
    prove(proven, *FRIENDS[:VOUCHERS])
    for friend in FRIENDS[:VOUCHERS]:
        vouch(proven, ONE, friend)
    proven.revoke(FRIENDS[0])
    assert FRIENDS[0] not in proven
    assert ONE not in proven
    prove(proven, FRIENDS[-1])
    vouch(proven, ONE, FRIENDS[-1])
    assert ONE in proven, "another may take its place"


def test_a_voucher_names_one_partner_of_a_round() -> None:
    """Three proven liars sign receipts for 200 keys in one round. Only one of the keys becomes proven."""
    proven = ProvenPeers()
    prove(proven, *FRIENDS[:VOUCHERS])
    for number in range(200):
        for part, liar in enumerate(FRIENDS[:VOUCHERS]):
            proven.vouched(PeerId(f"key {number}"), liar, RoundKey(5, 0, part))
    assert set(proven) == {*FRIENDS[:VOUCHERS], PeerId("key 0")}


def test_at_most_as_many_are_proven_by_vouchers_as_by_their_own_exchanges_and_the_latest() -> None:
    proven = ProvenPeers()
    keys = [PeerId(f"key {number}") for number in range(20)]
    prove(proven, *FRIENDS[:VOUCHERS])
    for key in keys:
        for liar in FRIENDS[:VOUCHERS]:
            vouch(proven, key, liar)
    assert [key for key in keys if key in proven] == keys[-VOUCHERS:]
    assert proven.among({*FRIENDS, *keys[:5]}) == {*FRIENDS[:VOUCHERS], *keys[5 - VOUCHERS : 5]}, "of those present"
    assert proven.going_first(keys) == set(), "nobody of them did anything for us"
    prove(proven, keys[0], *map(PeerId, "ab"))
    assert len(set(proven) & set(keys)) == 1 + VOUCHERS + 3


def test_one_or_two_favourites_do_not_go_first() -> None:
    proven = ProvenPeers()
    prove(proven, *FRIENDS[:LEAST])
    assert proven.going_first(FRIENDS) == set(FRIENDS[:LEAST])
    assert proven.going_first(FRIENDS[1:]) == set()
    assert proven.among(FRIENDS[1:]) == set(FRIENDS[1:LEAST])


def test_it_is_the_same_after_a_restart() -> None:
    proven = ProvenPeers()
    prove(proven, *FRIENDS[:VOUCHERS])
    for friend in FRIENDS[:VOUCHERS]:
        vouch(proven, ONE, friend)
    proven.accepted(OTHER)
    kept = proven.pack_if_changed()
    assert kept is not None
    again = unpack(kept)
    assert again.pack_if_changed() is None
    assert set(again) == set(proven)
    assert again.pack() == proven.pack()
    for _ in range(NEEDED - 1):
        again.accepted(OTHER)
    assert OTHER in again
    assert again.pack_if_changed() == again.pack()


def test_nothing_new_is_nothing_to_keep() -> None:
    proven = ProvenPeers()
    prove(proven, ONE)
    assert proven.pack_if_changed() is not None
    proven.accepted(ONE)
    vouch(proven, ONE, OTHER)
    proven.revoke(OTHER)
    assert proven.pack_if_changed() is None


def test_floods_of_keys_are_forgotten_first_in_first_out() -> None:
    proven = ProvenPeers()
    prove(proven, *FRIENDS[:VOUCHERS])
    for number in range(MAX_KEPT + 10):
        for friend in FRIENDS[:VOUCHERS]:
            vouch(proven, PeerId(f"key {number}"), friend)
    assert len(list(proven)) == 2 * VOUCHERS
    assert len(proven.pack()) <= MAX_BYTES
    for number in range(MAX_KEPT + 10):
        proven.accepted(PeerId(f"key {number}"))
    assert FRIENDS[0] not in proven
    assert len(json.loads(proven.pack())["accepted"]) == MAX_KEPT


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"format": 2, "accepted": [], "vouchers": []},
        {"format": 1, "accepted": [["a", 0]], "vouchers": []},
        {"format": 1, "accepted": [["a", True]], "vouchers": []},
        {"format": 1, "accepted": [["a", NEEDED + 1]], "vouchers": []},
        {"format": 1, "accepted": [["a"]], "vouchers": []},
        {"format": 1, "accepted": [["a" * 65, 1]], "vouchers": []},
        {"format": 1, "accepted": [["\n", 1]], "vouchers": []},
        {"format": 1, "accepted": [], "vouchers": [["a", []]]},
        {"format": 1, "accepted": [], "vouchers": [["a", "bcd"]]},
        {"format": 1, "accepted": [], "vouchers": [["a", [1]]]},
        {"format": 1, "accepted": [], "vouchers": [["a", list("abcd")]]},
        {"format": 1, "accepted": 1, "vouchers": []},
        {"format": 1, "accepted": [[str(number), 1] for number in range(MAX_KEPT + 1)], "vouchers": []},
    ],
)
def test_a_foreign_file_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(json.dumps(body).encode())


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b"\xff", b" " * (MAX_BYTES + 1)])
def test_a_damaged_file_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(raw)


def test_one_round_of_each_block_is_unbiased_and_nobody_can_tell_which_without_the_run() -> None:
    rounds = [round_ for round_ in range(400) if unbiased(RUN, round_)]
    assert [round_ // BLOCK_ROUNDS for round_ in rounds] == list(range(400 // BLOCK_ROUNDS))
    assert {round_ % BLOCK_ROUNDS for round_ in rounds} == set(range(BLOCK_ROUNDS))
    assert rounds != [round_ for round_ in range(400) if unbiased(RunId(b"s" * 32), round_)]
