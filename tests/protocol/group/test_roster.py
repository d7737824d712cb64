from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest

from peer.errors import BadPayload
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import MAX_MEMBERS, Grace, Join, Roster, RosterBuilder, leaders, parse_roster
from peer.protocol.messages import PeerId, Reach, RoundKey, RunId

RUN = RunId(b"r" * 32)
KEY = RoundKey(5, 0)
A, B, C, D, E = (PeerId(name) for name in "abcde")
BASE = Base(b"1" * 32, (A, B), 4)
OTHER = Base(b"2" * 32, (A, B), 4)
LATER = Base(b"3" * 32, (A, C), 4)
ROSTER = Roster(RUN, KEY, A, BASE, (A, B, C), (A, C))


def collecting(
    needed: int = 3, grace_s: float = 2.0, me: PeerId = A, max_group: int = 16, known: Collection[Base] = ()
) -> RosterBuilder:
    def enough(base: Base, peers: Collection[PeerId]) -> bool:
        return len(peers) >= needed

    return RosterBuilder(RUN, KEY, me, max_group, grace_s, 100.0, enough, lambda base: base in known)


def join(base: Base = BASE, reach: Reach = Reach.DIRECT) -> Join:
    return Join(KEY, base, reach)


def test_everybody_orders_leaders_alike_and_rounds_differ() -> None:
    peers = [PeerId(f"p{number}") for number in range(8)]
    assert leaders(RUN, KEY, peers) == leaders(RUN, KEY, reversed(peers))
    firsts = Counter(leaders(RUN, RoundKey(round_, 0), peers)[0] for round_ in range(400))
    assert len(firsts) == 8
    assert max(firsts.values()) < 90
    assert leaders(RUN, KEY, peers) != leaders(RunId(b"s" * 32), KEY, peers)


def test_the_order_of_the_others_does_not_depend_on_who_is_seen() -> None:
    peers = [PeerId(f"p{number}") for number in range(8)]
    whole = leaders(RUN, KEY, peers)
    assert leaders(RUN, KEY, peers[1:]) == [peer for peer in whole if peer != peers[0]]


@pytest.mark.parametrize(
    ("reaches", "owners"),
    [
        ((Reach.DIRECT, Reach.DIRECT, Reach.DIRECT), (A, B, C)),
        ((Reach.DIRECT, Reach.RELAYED, Reach.NONE), (A,)),
        ((Reach.RELAYED, Reach.DIRECT, Reach.RELAYED), (B,)),
        ((Reach.RELAYED, Reach.RELAYED, Reach.NONE), (A, B)),
        ((Reach.NONE, Reach.NONE, Reach.RELAYED), (C,)),
    ],
)
def test_the_members_that_are_easiest_to_call_own_the_shards(
    reaches: tuple[Reach, ...], owners: tuple[PeerId, ...]
) -> None:
    leader = collecting()
    for peer, reach in zip((A, B, C), reaches, strict=True):
        leader.on_join(peer, join(reach=reach), 1.0)
    roster = leader.closed([A, B, C], 1.0)
    assert roster is not None
    assert (roster.members, roster.owners) == ((A, B, C), owners)


def test_closes_at_once_when_all_live_have_joined() -> None:
    leader = collecting()
    for peer, at in ((A, 1.0), (B, 1.1), (C, 1.2)):
        assert leader.closed([A, B, C], at) is None
        leader.on_join(peer, join(), at)
    assert leader.closed([A, B, C], 1.2) == Roster(RUN, KEY, A, BASE, (A, B, C), (A, B, C))


def test_with_a_quorum_it_waits_for_the_grace_alone() -> None:
    leader = collecting()
    for peer in (A, B, C):
        leader.on_join(peer, join(), 1.0)
    assert leader.next_at() == 3.0
    assert leader.closed([A, B, C, D], 2.9) is None
    roster = leader.closed([A, B, C, D], 3.0)
    assert roster is not None
    assert roster.members == (A, B, C)
    assert leader.last_slack() == 0.0


def test_joining_again_changes_nothing() -> None:
    leader = collecting()
    for at in (1.0, 1.5, 2.0):
        leader.on_join(A, join(), at)
        leader.on_join(A, join(OTHER), at)
    assert leader.joined == 1
    assert leader.closed([A], 3.0) is None


def test_below_quorum_there_is_none_and_the_window_ends() -> None:
    leader = collecting()
    leader.on_join(A, join(), 1.0)
    leader.on_join(B, join(), 2.0)
    assert leader.closed([A, B], 99.0) is None
    assert not leader.hopeless([A, B, C], 99.0)
    assert leader.hopeless([A, B], 99.0), "nobody else can come"
    assert leader.hopeless([A, B, C], 100.0)
    assert leader.rally() is None, "too few"


def test_the_most_common_base_wins_and_a_tie_is_the_leaders() -> None:
    leader = collecting(needed=2)
    for peer, base in ((A, BASE), (B, OTHER), (C, OTHER), (D, BASE), (E, OTHER)):
        leader.on_join(peer, join(base), 1.0)
    roster = leader.closed([A, B, C, D, E], 1.0)
    assert roster is not None
    assert (roster.base, roster.members) == (OTHER, (B, C, E))
    tied = collecting(needed=2, me=D)
    for peer, base in ((A, BASE), (B, OTHER), (C, OTHER), (D, BASE)):
        tied.on_join(peer, join(base), 1.0)
    roster = tied.closed([A, B, C, D], 1.0)
    assert roster is not None
    assert (roster.base, roster.members) == (BASE, (A, D))


def test_a_base_without_electors_counts_only_while_nobody_names_any() -> None:
    fresh = Base(b"9" * 32)
    leader = collecting(needed=2)
    for peer, base in ((A, fresh), (B, fresh), (C, fresh), (D, BASE)):
        leader.on_join(peer, join(base), 1.0)
        if peer == C:
            roster = leader.closed([A, B, C], 1.0)
            assert roster is not None
            assert roster.base == fresh
    assert leader.closed([A, B, C, D], 50.0) is None


def test_split_over_bases_they_rally_round_the_latest() -> None:
    leader = collecting(needed=3)
    bases = ((A, BASE), (B, BASE), (C, replace(OTHER, since=6)), (D, LATER))
    for peer, base in bases:
        leader.on_join(peer, join(base), 1.0)
    assert leader.hopeless([A, B, C, D], 1.0)
    roster = leader.rally()
    assert roster is not None
    assert (roster.base.digest, roster.members) == (OTHER.digest, (C,))


NEWER = Base(b"4" * 32, (A, B, C, D), 6)
"""Base of a roster that A and B were in, and whose result they did not get."""


def come(leader: RosterBuilder) -> None:
    for peer, base in ((A, BASE), (B, BASE), (E, BASE), (D, NEWER)):
        leader.on_join(peer, join(base), 1.0)


def test_a_base_that_its_members_have_left_gives_way_to_the_later_one() -> None:
    leader = collecting(needed=3, known=[NEWER])
    come(leader)
    assert leader.closed([A, B, D, E], 1.0) is None, "of A and B, in whose eyes two of four are too few"
    assert leader.hopeless([A, B, D, E], 1.0)
    roster = leader.rally()
    assert roster is not None
    assert (roster.base, roster.members) == (NEWER, (D,))


def test_a_later_base_that_only_others_speak_of_changes_nothing() -> None:
    leader = collecting(needed=3)
    come(leader)
    roster = leader.closed([A, B, D, E], 1.0)
    assert roster is not None
    assert (roster.base, roster.members) == (BASE, (A, B, E))


def test_a_base_stays_while_enough_have_not_left_it() -> None:
    enough_of_them = collecting(needed=3, known=[NEWER])
    come(enough_of_them)
    enough_of_them.on_join(C, join(), 1.0)
    roster = enough_of_them.closed(list("ABCDE"), 50.0)
    assert roster is not None
    assert roster.base == BASE, "three of four contribute"
    few_of_them = collecting(needed=1, known=[NEWER])
    come(few_of_them)
    roster = few_of_them.closed([A, B, D, E], 1.0)
    assert roster is not None
    assert roster.base == BASE, "E alone is enough"


def test_a_quorum_that_is_none_any_more_is_not_waited_for() -> None:
    leader = collecting(needed=3, known=[NEWER])
    for peer in (A, B, E):
        leader.on_join(peer, join(), 1.0)
    assert leader.next_at() == 3.0
    leader.on_join(D, join(NEWER), 2.0)
    assert leader.next_at() == 100.0
    assert leader.closed([A, B, C, D, E], 100.0) is None
    assert leader.hopeless([A, B, C, D, E], 100.0)


def test_they_rally_round_the_state_that_they_were_left_for_and_not_a_later_one() -> None:
    invented = replace(OTHER, since=9)
    leader = collecting(needed=3, known=[NEWER])
    come(leader)
    leader.on_join(C, join(invented), 1.0)
    roster = leader.rally()
    assert roster is not None
    assert roster.base == NEWER


def test_a_leader_that_is_behind_names_the_latest() -> None:
    leader = collecting(needed=4, known=[BASE])
    come(leader)
    roster = leader.rally()
    assert roster is not None
    assert roster.base == NEWER, "although it does not know it"


def test_max_group_takes_the_first() -> None:
    leader = collecting(needed=2, max_group=3)
    for number, peer in enumerate((E, D, C, B, A)):
        leader.on_join(peer, join(), float(number))
    roster = leader.closed([A, B, C, D, E], 5.0)
    assert roster is not None
    assert roster.members == (C, D, E)


def test_only_those_that_can_be_dialled_own_shards() -> None:
    leader = collecting(needed=2)
    leader.on_join(B, join(reach=Reach.NONE), 1.0)
    leader.on_join(C, join(reach=Reach.NONE), 1.0)
    assert leader.closed([B, C], 5.0) is None, "nobody could own anything"
    leader.on_join(A, join(), 1.0)
    roster = leader.closed([A, B, C], 5.0)
    assert roster is not None
    assert (roster.members, roster.owners) == ((A, B, C), (A,))


def test_grace_follows_what_was_seen_between_its_bounds() -> None:
    grace = Grace()
    assert grace.seconds(40.0) == 10.0
    grace.observe(2.0)
    assert grace.seconds(40.0) == 4.0
    grace.observe(4.0)
    assert grace.seconds(40.0) == 8.0
    grace.observe(0.0)
    assert grace.seconds(40.0) == pytest.approx(7.6), "one quick round does not make the slow ones forgotten"
    for _ in range(60):
        grace.observe(0.0)
    assert grace.seconds(40.0) == 0.5
    grace.observe(1000.0)
    assert grace.seconds(40.0) == 10.0


def test_grace_covers_two_inner_steps_of_the_leader() -> None:
    grace = Grace()
    grace.observe(0.1)
    grace.expect_steps(2.0)
    assert grace.seconds(40.0) == 4.0
    grace.expect_steps(30.0)
    assert grace.seconds(40.0) == 10.0


def test_grace_leaves_out_few_of_those_that_join_at_the_end_of_a_step() -> None:
    """Three members with steps of two seconds that end at random times. The quorum is two of them."""
    rng, grace, late = random.Random(5), Grace(), 0
    for _ in range(1000):
        _, second, third = sorted(rng.uniform(0, 2.0) for _ in range(3))
        late += third - second > grace.seconds(40.0)
        grace.observe(third - second)
    assert late <= 25, "twice the mean of the slacks leaves out more than 160"


def test_a_roster_survives_its_bytes() -> None:
    assert parse_roster(ROSTER.to_bytes()) == ROSTER
    assert ROSTER.name() != replace(ROSTER, leader=B).name()


def changed(**values: object) -> bytes:
    body = json.loads(ROSTER.to_bytes()) | values
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"nul",
        b"[" * 10_000,
        b" " + ROSTER.to_bytes(),
        ROSTER.to_bytes() * 200,
        changed(members=["b", "a", "c"]),
        changed(members=["a", "a", "c"]),
        changed(members=[]),
        changed(members=[1, 2]),
        changed(members=[f"{number:03d}" for number in range(MAX_MEMBERS + 1)]),
        changed(members=["a", "b" * 65, "c"]),
        changed(owners=[]),
        changed(owners=["a", "d"]),
        changed(owners=["a\n", "c"]),
        changed(round=-1),
        changed(round=2**60),
        changed(round=True),
        changed(round="5"),
        changed(round=5.0),
        changed(fragment=2**40),
        changed(base="00"),
        changed(base="zz" * 32),
        changed(since=-1),
        changed(since=None),
        changed(electors=[]),
        changed(leader=""),
        changed(leader=7),
        changed(more=1),
        changed(run="zz"),
    ],
)
def test_bytes_that_are_no_roster_are_refused(raw: bytes) -> None:
    with pytest.raises(BadPayload) as caught:
        parse_roster(raw)
    assert caught.value.code == "roster"
