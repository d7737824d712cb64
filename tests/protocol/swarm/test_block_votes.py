"""Votes of peers: one for each address block, and by key where all are in one."""

from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.protocol.swarm.block_votes import BlockVotes, in_turn


def test_all_keys_of_a_block_have_one_vote_together() -> None:
    votes = BlockVotes({PeerId(name): name[0] for name in ("x1", "x2", "x3", "a1", "b1")})
    assert votes.networks == 3
    assert votes.count(map(PeerId, ("x1", "x2", "x3"))) == 1
    assert votes.weigh(map(PeerId, ("a1", "b1"))) > votes.weigh(map(PeerId, ("x1", "x2", "x3")))


def test_in_one_block_each_key_has_a_vote() -> None:
    votes = BlockVotes(dict.fromkeys(map(PeerId, "abcde"), "here"))
    assert votes.networks == 5
    assert votes.count(map(PeerId, "abc")) == 3


def test_proven_peers_count_first() -> None:
    votes = BlockVotes({PeerId(name): name for name in "abcd"}, {PeerId("a")})
    assert votes.weigh([PeerId("a")]) > votes.weigh(map(PeerId, "bcd"))


def test_equal_votes_of_blocks_are_decided_by_keys() -> None:
    votes = BlockVotes({PeerId(name): name[0] for name in ("x1", "x2", "a1")})
    assert votes.weigh(map(PeerId, ("x1", "x2"))) > votes.weigh([PeerId("a1")])


def test_one_of_each_block_comes_before_the_second_of_any() -> None:
    assert in_turn(["x1", "x2", "x3", "a1", "b1", "a2"], lambda name: name[0]) == ["x1", "a1", "b1", "x2", "a2", "x3"]
    assert in_turn([], str) == []
