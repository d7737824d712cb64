from __future__ import annotations

import itertools

from peer.protocol.group.quorum import EXPIRE, Base, Quorum
from peer.protocol.messages import PeerId


def ids(text: str) -> tuple[PeerId, ...]:
    return tuple(PeerId(letter) for letter in text)


def test_before_the_first_roster_it_goes_by_the_peers_seen() -> None:
    quorum = Quorum()
    assert [quorum.needed(live) for live in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert quorum.shortfall_reason(0, ids("ab"), live=4)
    assert not quorum.shortfall_reason(0, ids("abc"), live=4)


def test_it_takes_more_than_half_of_the_largest_of_the_last_ten() -> None:
    quorum = Quorum()
    quorum.accepted(0, ids("abcdefgh"))
    quorum.adopt(Base(b"d" * 32, ids("abcdefgh"), 0))
    for round_ in range(1, 10):
        quorum.accepted(round_, ids("abcde"))
        quorum.adopt(Base(b"d" * 32, ids("abcde"), round_))
        assert quorum.needed(1) == 5, "not a corner of itself within a few rounds"
    quorum.accepted(10, ids("abcde"))
    assert quorum.needed(1) == 3


def test_newcomers_do_not_make_up_for_missing_electors() -> None:
    quorum = Quorum()
    quorum.accepted(0, ids("abcde"))
    quorum.adopt(Base(b"d" * 32, ids("abcde"), 0))
    assert "2 of the 5" in quorum.shortfall_reason(1, ids("abvwxyz"))
    assert not quorum.shortfall_reason(1, ids("abcxyz"))
    assert quorum.base(b"d" * 32) == Base(b"d" * 32, ids("abcde"), 0)


def test_a_roster_whose_result_was_missed_counts_too() -> None:
    quorum = Quorum()
    quorum.accepted(0, ids("abcde"))
    quorum.adopt(Base(b"d" * 32, ids("abcde"), 0))
    quorum.accepted(1, ids("abcdefgh"))
    assert quorum.base(b"d").electors == ids("abcde")
    assert quorum.shortfall_reason(2, ids("abcxy")), "5 peers, 3 of 5 electors, and 3 of the 8"
    assert not quorum.shortfall_reason(2, ids("abcfg"))
    quorum.adopt(Base(b"d" * 32, ids("abcdefgh"), 1))
    assert quorum.base(b"d").electors == ids("abcdefgh")


def test_it_remembers_the_rosters_that_it_was_in() -> None:
    quorum = Quorum()
    quorum.accepted(0, ids("abc"))
    quorum.adopt(Base(b"d", ids("abc"), 0))
    quorum.accepted(1, ids("abcd"))
    assert quorum.remembers(Base(b"d", ids("abc"), 0))
    assert quorum.remembers(Base(b"any", ids("abcd"), 1)), "whatever came of it"
    assert not quorum.remembers(Base(b"d", ids("abcd"), 2))
    assert not quorum.remembers(Base(b"d", ids("ab"), 1))


def test_who_takes_over_an_older_state_still_counts_the_rosters_accepted_since() -> None:
    quorum = Quorum()
    quorum.accepted(0, ids("abcde"))
    quorum.adopt(Base(b"d" * 32, ids("abcde"), 0))
    for round_ in (1, 2):
        quorum.accepted(round_, ids("abcdefgh"))
    quorum.adopt(Base(b"e" * 32, ids("abcde"), 1))
    assert quorum.since == 1
    assert quorum.shortfall_reason(3, ids("abcxy")), "round 2 may have given a result, of which 3 of 8 know nothing"
    assert not quorum.shortfall_reason(3, ids("abcfg"))
    quorum.adopt(Base(b"f" * 32, ids("abcde"), 2))
    assert not quorum.shortfall_reason(3, ids("abcxy"))


def test_two_disjoint_sets_are_never_both_enough() -> None:
    """Tries all pairs of disjoint sets of peers, with newcomers. One of the sets may have missed the last result."""
    held, missed = Quorum(), Quorum()
    for quorum in (held, missed):
        quorum.accepted(0, ids("abcd"))
        quorum.adopt(Base(b"d" * 32, ids("abcd"), 0))
        quorum.accepted(1, ids("abcde"))
    held.adopt(Base(b"d" * 32, ids("abcde"), 1))
    everybody = ids("abcdefgh")
    subsets = [set(some) for size in range(9) for some in itertools.combinations(everybody, size)]
    enough_here = [some for some in subsets if not held.shortfall_reason(2, some)]
    enough_there = [some for some in subsets if not missed.shortfall_reason(2, some)]
    assert len(enough_here) > 20
    assert len(enough_there) > 20
    for sets in (itertools.product(enough_here, enough_there), itertools.combinations(enough_here, 2)):
        assert all(one & other for one, other in sets)


def test_electors_that_are_gone_for_good_are_forgotten_after_a_while() -> None:
    quorum = Quorum(period=2)
    quorum.accepted(4, ids("ab"))
    quorum.adopt(Base(b"d" * 32, ids("ab"), 4))
    assert quorum.shortfall_reason(4 + 2 * EXPIRE, ids("ax"))
    assert not quorum.shortfall_reason(5 + 2 * EXPIRE, ids("ax"))
    assert quorum.shortfall_reason(5 + 2 * EXPIRE, ids("a")), "by number one of two is still too few"


def test_who_caught_up_has_the_memory_of_the_others() -> None:
    quorum = Quorum()
    quorum.accepted(0, ids("xyz"))
    quorum.adopt(Base(b"d" * 32, ids("abc"), 3))
    assert not quorum.shortfall_reason(4, ids("ab"))
    assert quorum.shortfall_reason(4, ids("ax"))


def test_the_mark_tells_bases_apart() -> None:
    base = Base(b"d" * 32, ids("ab"), 3)
    others = [Base(b"e" * 32, ids("ab"), 3), Base(b"d" * 32, ids("ac"), 3), Base(b"d" * 32, ids("ab"), 4)]
    assert len({base.mark(), *(other.mark() for other in others)}) == 4
    assert base.mark() == Base(b"d" * 32, ids("ab"), 3).mark()


def test_one_that_is_cut_off_before_its_first_roster_founds_no_group() -> None:
    quorum = Quorum()
    quorum.record_live(4)
    quorum.record_live(1)
    assert quorum.needed(live=1) == 3
    assert quorum.shortfall_reason(2, [PeerId("a")])
    for _ in range(10):
        quorum.record_live(1)
    assert quorum.needed(live=1) == 1


def test_a_roster_without_a_result_does_not_make_up_for_the_peers_seen() -> None:
    quorum = Quorum()
    quorum.record_live(5)
    quorum.accepted(0, ids("abc"))
    assert quorum.shortfall_reason(0, ids("ab"), live=3), "three of the five may be at work on another roster"
    assert not quorum.shortfall_reason(0, ids("abc"), live=3)
    quorum.adopt(Base(b"d" * 32, ids("abc"), 0))
    assert not quorum.shortfall_reason(1, ids("ab"), live=3)


def test_the_first_result_takes_more_than_half_of_the_founders() -> None:
    quorum = Quorum(founders=7)
    quorum.record_live(3)
    quorum.accepted(0, ids("abc"))
    assert quorum.needed(live=3) == 4
    quorum.adopt(Base(b"d" * 32, ids("abcd"), 0))
    assert quorum.needed(live=3) == 2, "from then on electors count"


def test_founders_that_do_not_come_are_not_waited_for_for_ever() -> None:
    quorum = Quorum(founders=7)
    for _ in range(9):
        quorum.record_live(3)
    assert quorum.needed(live=3) == 4
    kept = quorum.remembered()
    quorum = Quorum(founders=7)
    quorum.recall(kept)
    quorum.record_live(3)
    assert quorum.needed(live=3) == 2
