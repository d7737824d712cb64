"""Two peers are not paired too often."""

from __future__ import annotations

from peer.protocol.messages import PeerId
from peer.protocol.pair.acquaintance import MAX_MET, Acquaintance


def test_from_eight_peers_on_two_meet_at_most_twice_in_half_as_many_rounds() -> None:
    known = Acquaintance()
    other = PeerId("other")
    known.met(other, 10)
    assert not known.met_too_often(other, 11, live=16)
    known.met(other, 12)
    assert known.met_too_often(other, 17, live=16)
    assert not known.met_too_often(other, 18, live=16)
    assert not known.met_too_often(other, 13, live=7)
    known.forget_absent([])
    assert known.met_too_often(other, 13, live=16)  # an absent peer is still remembered
    for number in range(MAX_MET):
        known.met(PeerId(f"p{number}"), 12)
    known.forget_absent([])
    assert not known.met_too_often(other, 13, live=16)


def test_a_flood_of_fresh_keys_keeps_old_friends_from_meeting_no_longer_than_before() -> None:
    known, friend, stranger = Acquaintance(), PeerId("friend"), PeerId("stranger")
    friends = {friend, *(PeerId(f"friend {number}") for number in range(14))}
    for other in (friend, stranger):
        known.met(other, 10)
        known.met(other, 12)
    assert known.met_too_often(friend, 17, live=1000, proven=friends)
    assert not known.met_too_often(friend, 18, live=1000, proven=friends)
    assert known.met_too_often(stranger, 18, live=1000, proven=friends)
    assert known.all_met_too_often(18, 1000, friends) == {stranger}
    assert known.all_met_too_often(13, 7) == set()
