"""Tests of suspicion and of being out: a peer with which a live peer still exchanges is never out."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.swarm.failure_detection import (
    CHECK_EVERY_S,
    FRESH_S,
    HEARD_S,
    MAX_CASES,
    RECHECK_S,
    VOUCHED_S,
    WITNESSES,
    Check,
    LivenessChange,
    Membership,
    confirm_after,
)

X, A, B, C, D = (PeerId(name) for name in ("x", "a", "b", "c", "d"))
OTHERS = [A, B, C, D]
CONFIRM_S = confirm_after(45.0, 3.0)


@dataclass(frozen=True)
class Record:
    issued_at: float


def dated(issued: list[tuple[PeerId, float]]) -> dict[PeerId, Record]:
    return {peer: Record(at) for peer, at in issued}


def suspecting(at: float = 100.0) -> Membership:
    membership = Membership(CONFIRM_S)
    membership.seen(dated([(peer, at - 10) for peer in (X, *OTHERS)]), at)
    (changed,) = membership.failed(X, at, "no answer")
    assert (changed.peer, changed.change) == (X, LivenessChange.SUSPECTED)
    return membership


def asked(membership: Membership, now: float, able: list[PeerId] = OTHERS) -> list[Check]:
    return membership.checks(able, now, random.Random(0))[0]


def denied_by_all(membership: Membership, now: float) -> None:
    for peer in OTHERS[:WITNESSES]:
        membership.on_witness_answer(peer, X, False, "no answer", now)


def test_a_suspect_stays_a_candidate_and_others_are_asked_about_it_one_by_one() -> None:
    membership = suspecting()
    assert not membership.out(X)
    (first,) = asked(membership, 100.0)
    assert asked(membership, 100.0 + CHECK_EVERY_S / 2) == []
    (second,) = asked(membership, 100.0 + CHECK_EVERY_S)
    assert first.about == second.about == X
    assert first.by != second.by


def test_no_witness_is_asked_twice_within_half_a_minute() -> None:
    membership = suspecting()
    times = [100 + CHECK_EVERY_S * number for number in range(14)]
    checks = [check.by for now in times for check in asked(membership, now)]
    assert sorted(checks) == OTHERS


def test_out_takes_the_word_of_three_and_time_without_a_record_while_others_announce() -> None:
    membership = suspecting()
    denied_by_all(membership, 105.0)
    membership.seen(dated([(X, 90.0), (A, 110.0)]), 112.0)
    assert membership.checks(OTHERS, 100 + CONFIRM_S - 0.1, random.Random(0))[1] == []
    _, (changed,) = membership.checks(OTHERS, 100 + CONFIRM_S, random.Random(0))
    assert (changed.peer, changed.change) == (X, LivenessChange.OUT)
    assert membership.out(X)
    assert membership.peers_out() == {X}


def test_two_words_are_not_enough_where_there_are_more_peers() -> None:
    membership = suspecting()
    for peer in OTHERS[: WITNESSES - 1]:
        membership.on_witness_answer(peer, X, False, "no answer", 105.0)
    membership.seen(dated([(X, 90.0), (A, 110.0)]), 112.0)
    assert membership.checks(OTHERS, 500.0, random.Random(0))[1] == []
    assert membership.checks([A, B], 500.0, random.Random(0))[1] != [], "unless those two are all there are"


def test_alone_with_it_nobody_is_declared_dead() -> None:
    membership = suspecting()
    membership.seen(dated([(X, 90.0), (A, 110.0)]), 112.0)
    assert membership.checks([], 1000.0, random.Random(0)) == ([], [])
    assert not membership.out(X)


def test_a_directory_that_stands_still_buries_nobody() -> None:
    membership = suspecting()
    denied_by_all(membership, 105.0)
    membership.seen(dated([(X, 90.0), (A, 91.0)]), 150.0)
    assert membership.checks(OTHERS, 200.0, random.Random(0))[1] == []


@pytest.mark.parametrize("out", [False, True])
def test_a_later_record_a_call_or_a_witness_brings_it_back(out: bool) -> None:
    for way in ("record", "call", "word"):
        membership = suspecting()
        if out:
            denied_by_all(membership, 105.0)
            membership.seen(dated([(X, 90.0), (A, 110.0)]), 112.0)
            membership.checks(OTHERS, 130.0, random.Random(0))
        assert membership.out(X) is out
        match way:
            case "record":
                (changed,) = membership.seen(dated([(X, 131.0)]), 132.0)
            case "call":
                (changed,) = membership.on_contact(X, 132.0)
            case _:
                (changed,) = membership.on_witness_answer(A, X, True, "it answers", 132.0)
        assert changed.change is (LivenessChange.VOUCHED if way == "word" and not out else LivenessChange.BACK)
        assert membership.cases() == {}
        assert changed.seconds == 32.0


def test_one_that_others_reach_is_not_suspected_again_for_a_while() -> None:
    membership = suspecting()
    membership.on_witness_answer(A, X, True, "it answers", 105.0)
    assert membership.failed(X, 105.0 + VOUCHED_S - 1, "no answer") == []
    assert membership.failed(X, 105.0 + VOUCHED_S, "no answer") != []


def test_a_lost_call_right_after_a_word_of_the_peer_is_no_sign() -> None:
    membership = Membership(CONFIRM_S)
    membership.on_contact(X, 100.0)
    assert membership.failed(X, 100.0 + FRESH_S - 0.1, "no answer") == []
    assert membership.failed(X, 100.0 + FRESH_S, "no answer") != []


def test_suspects_are_no_witnesses_and_the_out_are_asked_about_seldom() -> None:
    membership = suspecting()
    membership.failed(A, 100.0, "no answer")
    assert {check.by for check in asked(membership, 100.0)} <= {B, C, D}
    membership = suspecting()
    denied_by_all(membership, 105.0)
    membership.seen(dated([(X, 90.0), (A, 110.0)]), 112.0)
    asked(membership, 130.0)
    assert membership.out(X)
    checks = [check for step in range(600) for check in asked(membership, 131.0 + step / 10)]
    assert 1 <= len(checks) <= 1 + 60 / RECHECK_S


def test_whom_the_directory_let_go_is_forgotten() -> None:
    membership = suspecting()
    assert membership.seen(dated([(A, 110.0)]), 112.0) == []
    assert membership.cases() == {}


def test_silence_all_around_is_our_own_connection() -> None:
    membership = Membership(CONFIRM_S)
    membership.on_contact(A, 90.0)
    membership.failed(A, 100.0, "no answer")
    assert membership.isolated_s(105.0) is None, "one alone is its own trouble"
    membership.failed(B, 101.0, "no answer")
    assert membership.isolated_s(110.0) == 10.0
    membership.on_contact(C, 111.0)
    assert membership.isolated_s(112.0) is None


def test_memory_is_bounded() -> None:
    membership = Membership(CONFIRM_S)
    for number in range(3 * MAX_CASES):
        membership.failed(PeerId(f"p{number}"), 100.0, "no answer")
    assert len(membership.cases()) == MAX_CASES


def test_confirming_takes_longer_than_a_live_peer_stays_silent() -> None:
    for lifetime_s, look_every_s in ((45.0, 3.0), (90.0, 30.0)):
        assert confirm_after(lifetime_s, look_every_s) > lifetime_s / 3 + 1.2 * look_every_s


@dataclass
class World:
    """Peers that call each other over links, some of which are cut in one or both directions, and a working
    directory."""

    rng: random.Random
    count: int
    cut: set[tuple[int, int]] = field(default_factory=set)
    dead_at: dict[int, float] = field(default_factory=dict)

    def passes(self, one: int, other: int) -> bool:
        return (one, other) not in self.cut and (other, one) not in self.cut

    def alive(self, peer: int, now: float) -> bool:
        return now < self.dead_at.get(peer, float("inf"))


@pytest.mark.parametrize("seed", range(40))
def test_never_out_while_some_live_peer_exchanges_with_it_and_always_out_when_dead(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng, rng.randint(3, 12))
    peers = range(world.count)
    names = [PeerId(f"p{number}") for number in peers]
    views = [Membership(CONFIRM_S) for _ in peers]
    issued = dict.fromkeys(peers, 0.0)
    exchanged = dict.fromkeys(peers, 0.0)
    victim = rng.randrange(world.count)
    world.dead_at[victim] = 150.0
    for tick in range(1, 500):
        now = tick * 0.5
        if tick % 40 == 0:  # links fail and are repaired at random, up to nearly all links of a peer
            world.cut = {(a, b) for a in peers for b in peers if a < b and rng.random() < rng.choice((0.1, 0.5, 0.9))}
        for peer in peers:
            if world.alive(peer, now) and now - issued[peer] >= 15.0 + rng.random():
                issued[peer] = now
            if not world.alive(peer, now):
                continue
            other = rng.choice([one for one in peers if one != peer])
            if world.alive(other, now) and world.passes(peer, other):
                views[peer].on_contact(names[other], now)
                views[other].on_contact(names[peer], now)
                exchanged[peer] = exchanged[other] = now
            else:
                views[peer].failed(names[other], now, "no answer")
            if tick % 6 == peer % 6:
                known = [(names[one], issued[one]) for one in peers if one != peer and issued[one] + 45 > now]
                views[peer].seen(dated(known), now)
            able = [names[one] for one in peers if one != peer and issued[one] + 45 > now]
            checks, changed = views[peer].checks(able, now, rng)
            for check in checks:
                by, about = names.index(check.by), names.index(check.about)
                if not (world.alive(by, now) and world.passes(peer, by)):
                    views[peer].failed(check.by, now, "no answer")
                    continue
                ago = views[by].contact_age_s(check.about, now)
                reaches = world.alive(about, now) and world.passes(by, about)
                views[peer].on_contact(check.by, now)
                views[peer].on_witness_answer(
                    check.by, check.about, reaches or (ago is not None and ago <= HEARD_S), "", now
                )
            for one in changed:
                if one.change is LivenessChange.OUT:
                    about = names.index(one.peer)
                    assert now - exchanged[about] > HEARD_S - 1 or not world.alive(about, now), (
                        f"seed {seed}: {one} although it exchanged {now - exchanged[about]:.1f} s ago"
                    )
    assert not world.alive(victim, 249.0)
    for peer in peers:
        assert all(not views[peer].out(names[one]) or one == victim for one in peers), "the living are back"
