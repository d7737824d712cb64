"""The stored rosters of a group survive encoding and decoding, and the quorum continues from them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from peer.protocol.group.quorum import EXPIRE, KEPT, Base, Quorum, Rosters
from peer.protocol.group.quorum_codec import MAX_BYTES, pack, unpack
from peer.protocol.messages import PeerId

PEERS = tuple(PeerId(f"p{number:02d}") for number in range(16))
HALF = PEERS[:8]
DIGEST = b"d" * 32


def played(rounds: int = 3) -> Quorum:
    """Return the quorum of a member of sixteen after steps with them."""
    quorum = Quorum()
    for round_ in range(rounds):
        quorum.accepted(round_, PEERS)
        quorum.adopt(Base(DIGEST, PEERS, round_))
    return quorum


def restarted(quorum: Quorum) -> Quorum:
    fresh = Quorum()
    fresh.recall(unpack(pack([quorum]), 1)[0])
    return fresh


def test_a_restarted_half_does_not_found_a_group_of_its_own() -> None:
    assert Quorum().shortfall_reason(4, HALF, live=8) == "", "which it would, had it forgotten"
    back = restarted(played())
    assert back.shortfall_reason(4, HALF, live=8) != ""
    assert back.shortfall_reason(4, PEERS[:9], live=9) == ""


def test_who_was_cut_off_before_its_first_roster_remembers_how_many_there_were() -> None:
    quorum = Quorum()
    quorum.record_live(16)
    assert restarted(quorum).shortfall_reason(1, HALF, live=8) != ""


def test_numbers_alone_are_not_enough_after_a_restart() -> None:
    strangers = tuple(PeerId(f"s{number}") for number in range(12))
    assert restarted(played()).shortfall_reason(4, strangers, live=12) != ""


def test_what_was_accepted_and_missed_counts_after_a_restart_too() -> None:
    quorum = played()
    quorum.accepted(3, PEERS[4:])
    back = restarted(quorum)
    assert "round 3" in back.shortfall_reason(4, PEERS[:10], live=16)


def test_what_is_remembered_expires_as_ever() -> None:
    back = restarted(played())
    strangers = tuple(PeerId(f"s{number}") for number in range(12))
    assert back.shortfall_reason(2 + EXPIRE + 1, strangers, live=12) == ""


def test_catching_up_replaces_it() -> None:
    back = restarted(played())
    back.adopt(Base(DIGEST, PEERS[:4], 5))
    assert back.remembered().rosters == ((5, PEERS[:4]),)


@pytest.mark.parametrize("seed", range(30))
def test_everything_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    quorums = []
    for _ in range(rng.randint(1, 6)):
        quorum = Quorum()
        for round_ in range(rng.randint(0, 30)):
            members = tuple(sorted(rng.sample(PEERS, rng.randint(1, 16))))
            quorum.record_live(rng.randint(1, 16))
            quorum.accepted(round_, members)
            if rng.random() < 0.5:
                quorum.adopt(Base(DIGEST, members, round_))
        quorums.append(quorum)
    kept = unpack(pack(quorums), len(quorums))
    assert kept == [quorum.remembered() for quorum in quorums]
    assert all(len(one.rosters) <= KEPT for one in kept)


def test_it_is_small() -> None:
    ids = tuple(PeerId(f"12D3KooW{number:044d}") for number in range(64))
    quorums = [Quorum() for _ in range(24)]
    for quorum in quorums:
        for round_ in range(20):
            quorum.accepted(round_, ids)
    assert len(pack(quorums)) < 64 * 1024


def kept(ids: list[str], rosters: list[Any], sizes: list[int]) -> bytes:
    body = {"format": 1, "ids": ids, "fragments": [{"rosters": rosters, "sizes": sizes, "seen": []}]}
    return json.dumps(body).encode()


def test_the_form_that_is_damaged_below_is_read_when_whole() -> None:
    assert unpack(kept(["a"], [[0, [0]]], [1]), 1) == [Rosters(((0, (PeerId("a"),)),), (1,))]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b" " * (MAX_BYTES + 1),
        json.dumps({"format": 2, "ids": [], "fragments": [{"rosters": [], "sizes": [], "seen": []}]}).encode(),
        json.dumps({"format": 1, "ids": [], "fragments": []}).encode(),
        json.dumps(
            {"format": 1, "ids": ["a"], "fragments": [{"rosters": [[0, [1]]], "sizes": [], "seen": []}]}
        ).encode(),
        json.dumps(
            {"format": 1, "ids": ["a"], "fragments": [{"rosters": [[0, [-1]]], "sizes": [], "seen": []}]}
        ).encode(),
        json.dumps(
            {"format": 1, "ids": ["a"], "fragments": [{"rosters": [[0, []]], "sizes": [], "seen": []}]}
        ).encode(),
        json.dumps(
            {"format": 1, "ids": ["a"], "fragments": [{"rosters": [[True, [0]]], "sizes": [], "seen": []}]}
        ).encode(),
        json.dumps(
            {"format": 1, "ids": ["a\n"], "fragments": [{"rosters": [[0, [0]]], "sizes": [], "seen": []}]}
        ).encode(),
        json.dumps(
            {"format": 1, "ids": ["a"], "fragments": [{"rosters": [[0, [0]]] * 99, "sizes": [], "seen": []}]}
        ).encode(),
        kept(["a"], [], [10**9]),
    ],
)
def test_a_damaged_file_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever is wrong with it
        unpack(raw, 1)


def test_nothing_kept_is_nothing_counted() -> None:
    assert unpack(pack([Quorum()]), 1) == [Rosters()]
