"""Tests of the matching, with explicit events and with a random scheduler of messages: no network, no loop, no
clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial

import pytest

from peer.protocol.messages import Answer, Offer, PeerId, Reach, RoundKey, RunId, Verdict
from peer.protocol.pair.matching import AWAIT_S, MOST_OUT, POLL_S, Matching
from peer.protocol.pair.scores import initiates, score

RUN = RunId(b"r" * 32)
KEY = RoundKey(3, 0)


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"peer-{number:03d}") for number in range(count)]


def ranked(me: PeerId, others: list[PeerId]) -> list[PeerId]:
    return sorted(others, key=lambda other: score(RUN, KEY, me, other), reverse=True)


def pairing(me: PeerId, candidates: list[PeerId], closed: Collection[PeerId] = ()) -> Matching:
    """Return a `Matching` with candidates. `closed`: those that cannot be dialled."""
    made = Matching(RUN, KEY, me, reach=Reach.NONE if me in closed else Reach.DIRECT)
    made.add(candidates, closed)
    return made


def test_score_is_shared_and_depends_on_everything() -> None:
    a, b, c = peers(3)
    assert score(RUN, KEY, a, b) == score(RUN, KEY, b, a)
    others = [
        score(RUN, RoundKey(4, 0), a, b),
        score(RUN, RoundKey(3, 1), a, b),
        score(RunId(b"s" * 32), KEY, a, b),
        score(RUN, KEY, a, c),
    ]
    assert score(RUN, KEY, a, b) not in others


def test_exactly_one_of_two_dials() -> None:
    a, b = peers(2)
    assert initiates(a, b) != initiates(b, a)


def test_two_peers_lock_on_the_first_offer() -> None:
    a, b = peers(2)
    one, other = pairing(a, [b]), pairing(b, [a])
    (send,) = one.actions(0.0)
    assert send.to == b
    assert send.offer == Offer(KEY)
    answer = other.on_offer(a, 0.0)
    assert answer.verdict is Verdict.LOCKED
    one.on_answer(b, answer, 0.0)
    assert one.locked == b
    assert other.locked == a


@pytest.mark.parametrize(
    ("mine", "theirs", "relayed"),
    [
        (Reach.RELAYED, Reach.RELAYED, True),
        (Reach.NONE, Reach.RELAYED, True),
        (Reach.DIRECT, Reach.RELAYED, False),
        (Reach.RELAYED, Reach.DIRECT, False),
        (Reach.DIRECT, Reach.DIRECT, False),
    ],
)
def test_a_pair_needs_a_relay_if_neither_has_an_address(mine: Reach, theirs: Reach, relayed: bool) -> None:
    a, b = peers(2)
    made = Matching(RUN, KEY, a, reach=mine)
    made.add([b], relayed=[b] if theirs is Reach.RELAYED else [])
    assert made.needs_relay(b) is relayed


def test_a_peer_that_finds_out_that_it_is_closed_before_the_round_opens_says_so() -> None:
    a, b = peers(2)
    made = Matching(RUN, KEY, a)
    made.set_own_reach(Reach.RELAYED)
    made.add([b])
    assert made.actions(0.0)[0].offer.reach is Reach.RELAYED
    made.set_own_reach(Reach.DIRECT)
    assert made.reach is Reach.RELAYED, "candidates are ranked by it already"


def test_crossing_offers_lock_both() -> None:
    a, b = peers(2)
    one, other = pairing(a, [b]), pairing(b, [a])
    one.actions(0.0)
    other.actions(0.0)
    to_one, to_other = one.on_offer(b, 0.0), other.on_offer(a, 0.0)
    one.on_answer(b, to_other, 0.0)
    other.on_answer(a, to_one, 0.0)
    assert (one.locked, other.locked) == (b, a)


def test_with_an_offer_in_flight_nobody_else_is_locked() -> None:
    me, *others = peers(4)
    best, second, _ = ranked(me, others)
    mine = pairing(me, others)
    assert [send.to for send in mine.actions(0.0)] == [best]
    assert mine.on_offer(second, 0.0).verdict is Verdict.HELD
    mine.on_answer(best, Answer(Verdict.TAKEN), 0.0)
    assert [send.to for send in mine.actions(0.0)] == [second]


def test_a_repeated_offer_hears_the_same_and_others_hear_taken() -> None:
    me, *others = peers(3)
    mine = pairing(me, others)
    best, second = ranked(me, others)
    assert mine.on_offer(best, 0.0).verdict is Verdict.LOCKED
    assert mine.on_offer(best, 0.0).verdict is Verdict.LOCKED
    assert mine.on_offer(second, 0.0).verdict is Verdict.TAKEN


def test_whoever_waits_hears_of_a_lock_elsewhere() -> None:
    me, *others = peers(3)
    best, second = ranked(me, others)
    mine = pairing(me, others)
    mine.actions(0.0)
    mine.on_offer(second, 0.0)
    mine.on_answer(best, Answer(Verdict.LOCKED), 0.0)
    assert [(send.to, send.offer.withdraw) for send in mine.actions(0.0)] == [(second, True)]


def test_held_offers_are_repeated_but_not_before_their_time() -> None:
    a, b = peers(2)
    mine = pairing(a, [b])
    mine.actions(0.0)
    mine.on_answer(b, Answer(Verdict.HELD), 10.0)
    assert mine.actions(10.0 + POLL_S / 2) == []
    assert mine.wake_at() == pytest.approx(10.0 + POLL_S)
    assert [send.to for send in mine.actions(10.0 + POLL_S)] == [b]


def test_a_candidate_that_is_ready_too_late_is_out() -> None:
    a, b = peers(2)
    mine = pairing(a, [b])
    mine.extend(5.0)
    mine.actions(0.0)
    mine.on_answer(b, Answer(Verdict.LATER, eta_s=6.0), 0.0)
    assert mine.exhausted
    assert "1 behind" in mine.solo_reason()


def test_a_lost_partner_is_replaced() -> None:
    me, *others = peers(3)
    best, second = ranked(me, others)
    mine = pairing(me, others)
    assert mine.on_offer(best, 0.0).verdict is Verdict.LOCKED
    mine.on_failed(best, "lost")
    assert [send.to for send in mine.actions(0.0)] == [second]


def test_after_the_end_offers_hear_taken() -> None:
    a, b = peers(2)
    mine = pairing(a, [b])
    mine.close()
    assert mine.on_offer(b, 0.0).verdict is Verdict.TAKEN
    assert mine.actions(0.0) == []


def test_nobody_pairs_with_itself() -> None:
    (a,) = peers(1)
    mine = pairing(a, [a])
    assert mine.exhausted
    assert mine.on_offer(a, 0.0).verdict is Verdict.REFUSED


Trust = Callable[[random.Random, PeerId, PeerId], bool]
"""Returns whether the second peer is proven to the first."""


def nobody(rng: random.Random, me: PeerId, other: PeerId) -> bool:
    return False


def run_matching(
    count: int,
    missing: float,
    seed: int,
    closed: int = 0,
    trusts: Trust = nobody,
    shuns: Trust = nobody,
    late: float = 0.0,
) -> dict[PeerId, PeerId | None]:
    """Deliver offers and answers one by one, in random order, until there are none left. Each view lacks some other
    peers.

    `closed`: number of random peers that cannot be dialled. `shuns`: whether the second peer is a last choice of the
    first. `late`: fraction of the deliveries before which some peer stops waiting for the answer to its offer."""
    rng = random.Random(seed)
    everybody = peers(count)
    shut = set(rng.sample(everybody, closed))
    table = dict[PeerId, Matching]()
    for me in everybody:
        others = [other for other in everybody if other != me]
        last = {other for other in others if shuns(rng, me, other)}
        reach = Reach.NONE if me in shut else Reach.DIRECT
        table[me] = Matching(RUN, KEY, me, reach=reach, last_choices=partial(set, last))
        proven = {other for other in others if trusts(rng, me, other)}
        table[me].add([other for other in others if rng.random() >= missing], shut, proven)
    wires: list[tuple[PeerId, PeerId, Offer | Answer]] = []
    now = 0.0
    for _ in range(count * 4000):
        for me in everybody:
            sends = table[me].actions(now)
            assert all(send.to not in shut or send.offer.withdraw for send in sends)
            wires += [(me, send.to, send.offer) for send in sends if send.to not in shut]
        if not wires:
            if late and any(_let_go(table, me, now) for me in everybody):
                continue
            if all(p.locked is not None or p.exhausted for p in table.values()):
                break
            now += POLL_S
            continue
        if late and rng.random() < late:
            asker, asked, offer = rng.choice(wires)
            if isinstance(offer, Offer) and not offer.withdraw:
                table[asker].on_late(asked)
        sender, to, said = wires.pop(rng.randrange(len(wires)))
        if isinstance(said, Answer):
            table[to].on_answer(sender, said, now)
        elif said.withdraw:
            table[to].on_withdraw(sender)
        else:
            wires.append((to, sender, table[to].on_offer(sender, now, said.reach, said.proven)))
    else:
        raise AssertionError(f"the matching did not end (seed {seed})")
    return {me: p.locked for me, p in table.items()}


def _let_go(table: dict[PeerId, Matching], me: PeerId, now: float) -> bool:
    """Check with the partner, as a heartbeat does, whether it still holds our lock. If not, drop the lock and return
    True."""
    partner = table[me].locked
    if partner is None or table[partner].on_offer(me, now).verdict in (Verdict.LOCKED, Verdict.LATER):
        return False
    table[me].on_failed(partner, "let go")
    return True


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16, 33])
@pytest.mark.parametrize("missing", [0.0, 0.1, 0.5])
def test_locks_are_mutual_and_nobody_is_left_who_could_pair(count: int, missing: float) -> None:
    for seed in range(10):
        locked = run_matching(count, missing, seed)
        for me, partner in locked.items():
            assert partner is None or locked[partner] == me, f"seed {seed}: {me} holds {partner}, not the reverse"
        if missing == 0.0:
            alone = [me for me, partner in locked.items() if partner is None]
            assert len(alone) == count % 2, f"seed {seed}: {alone}"


@pytest.mark.parametrize(("count", "closed"), [(4, 2), (8, 4), (9, 2), (16, 8), (16, 13), (33, 16), (33, 8)])
def test_as_many_pairs_are_made_as_can_be_when_some_only_call(count: int, closed: int) -> None:
    for seed in range(20):
        locked = run_matching(count, 0.0, seed, closed)
        assert all(partner is None or locked[partner] == me for me, partner in locked.items())
        alone = sum(partner is None for partner in locked.values())
        assert alone == max(count % 2, 2 * closed - count), f"seed {seed}"


def test_all_who_only_call_are_waited_for_at_once_and_one_that_called_a_while_longer() -> None:
    me, *others = peers(6)
    closed = set(others[:4])
    mine = pairing(me, others, closed)
    first, second, *_ = ranked(me, sorted(closed))
    assert mine.actions(10.0) == []
    assert mine.wake_at() == 10.0 + AWAIT_S
    assert mine.on_offer(second, 11.0, reach=Reach.NONE).verdict is Verdict.HELD
    assert mine.actions(11.5) == [], "the first one has time to call"
    assert mine.actions(10.0 + AWAIT_S) == []
    assert mine.wake_at() == 11.0 + AWAIT_S, "that time is over; the second has said that it is there"
    (send,) = mine.actions(11.0 + AWAIT_S)
    assert send.to == others[4], "nobody is waited for one by one"
    assert mine.on_offer(first, 13.0, reach=Reach.NONE).verdict is Verdict.HELD, "one offer in flight at a time"


def test_unwanted_candidates_are_out_unless_they_are_being_asked() -> None:
    me, *others = peers(5)
    best, second, *rest = ranked(me, others)
    made = pairing(me, others)
    assert [send.to for send in made.actions(0.0)] == [best]
    made.exclude(lambda peer: peer != second, "unwanted")
    made.on_answer(best, Answer(Verdict.TAKEN), 0.1)
    assert [send.to for send in made.actions(0.1)] == [second]
    made.on_answer(second, Answer(Verdict.TAKEN), 0.2)
    assert made.exhausted
    assert made.solo_reason() == "4 candidates: 2 unwanted, 2 taken"
    assert rest


def test_the_course_changes_with_what_there_is_to_do_and_only_then() -> None:
    me, *others = peers(4)
    first, second, third = ranked(me, others)
    made = pairing(me, others)
    made.actions(0.0)
    made.on_answer(first, Answer(Verdict.HELD), 0.0)
    course = made.decision_state
    made.on_offer(third, 0.0)
    assert made.decision_state == course, "one that is not our best waits"
    made.on_withdraw(second)
    assert made.decision_state == course, "nor does it matter that such a one is gone"
    made.on_withdraw(first)
    assert made.decision_state != course, "the best is gone"
    course = made.decision_state
    made.on_offer(third, 0.0)
    assert made.decision_state != course
    assert made.locked == third


def test_an_edge_between_the_proven_outweighs_a_better_score() -> None:
    me, *others = peers(6)
    *_, worst = ranked(me, others)
    mine, other = Matching(RUN, KEY, me), Matching(RUN, KEY, worst)
    mine.add(others, proven={worst})
    other.add([me, *others], proven={me})
    (send,) = mine.actions(0.0)
    assert send.to == worst
    assert send.offer.proven
    assert other.on_offer(me, 0.0, proven=True).verdict is Verdict.LOCKED


@pytest.mark.parametrize("heard", ["an answer", "an offer"])
def test_who_hears_that_it_is_not_proven_ranks_the_other_as_a_stranger(heard: str) -> None:
    me, *others = peers(6)
    best, *_, worst = ranked(me, others)
    mine = Matching(RUN, KEY, me)
    mine.add(others, proven={worst})
    if heard == "an offer":
        assert mine.on_offer(worst, 0.0, proven=False) == Answer(Verdict.HELD)
    else:
        assert [send.to for send in mine.actions(0.0)] == [worst]
        mine.on_answer(worst, Answer(Verdict.HELD, proven=False), 0.0)
    assert [send.to for send in mine.actions(0.0)] == [best]


def test_a_peer_that_is_not_in_the_round_yet_says_nothing_of_who_is_proven() -> None:
    me, *others = peers(4)
    *_, worst = ranked(me, others)
    mine = Matching(RUN, KEY, me)
    mine.add(others, proven={worst})
    assert [send.to for send in mine.actions(0.0)] == [worst]
    mine.on_answer(worst, Answer(Verdict.LATER, eta_s=0.1), 0.0)
    assert [send.to for send in mine.actions(1.0)] == [worst]


def one_sided(rng: random.Random, me: PeerId, other: PeerId) -> bool:
    return rng.random() < 0.5


def old_hands(rng: random.Random, me: PeerId, other: PeerId) -> bool:
    return max(me, other) < PeerId("peer-008")


@pytest.mark.parametrize("count", [2, 3, 8, 17, 33])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_matchings_end_when_half_of_the_trust_is_one_sided(count: int, missing: float) -> None:
    for seed in range(15):
        locked = run_matching(count, missing, seed, trusts=one_sided)
        assert all(partner is None or locked[partner] == me for me, partner in locked.items()), f"seed {seed}"
        if not missing:
            assert sum(partner is None for partner in locked.values()) == count % 2, f"seed {seed}"


@pytest.mark.parametrize(("count", "closed"), [(9, 2), (16, 8), (33, 16)])
def test_matchings_end_when_trust_differs_and_some_only_call(count: int, closed: int) -> None:
    for seed in range(15):
        for shuns in (nobody, one_sided):
            locked = run_matching(count, 0.0, seed, closed, trusts=one_sided, shuns=shuns)
            assert all(partner is None or locked[partner] == me for me, partner in locked.items()), f"seed {seed}"


def test_old_hands_meet_each_other_and_not_the_many_newcomers() -> None:
    for seed in range(10):
        locked = run_matching(40, 0.0, seed, trusts=old_hands)
        for me in peers(8):
            partner = locked[me]
            assert partner is not None
            assert partner < PeerId("peer-008"), f"seed {seed}: {me} met {partner}"


def test_candidates_of_last_choice_are_asked_when_all_others_are_out() -> None:
    me, *others = peers(4)
    best, second, worst = ranked(me, others)
    mine = Matching(RUN, KEY, me, last_choices=lambda: {best, second})
    mine.add(others)
    assert mine.on_offer(best, 0.0).verdict is Verdict.TAKEN
    assert [send.to for send in mine.actions(0.0)] == [worst]
    assert mine.on_offer(second, 0.0).verdict is Verdict.TAKEN, "another is being asked"
    mine.on_answer(worst, Answer(Verdict.TAKEN), 0.0)
    assert not mine.exhausted
    assert [send.to for send in mine.actions(0.0)] == [best]
    assert mine.on_offer(second, 0.0).verdict is Verdict.HELD


@pytest.mark.parametrize("count", [2, 8, 17])
def test_nobody_is_left_over_who_is_only_the_last_choice_of_others(count: int) -> None:
    def everybody_shuns(rng: random.Random, me: PeerId, other: PeerId) -> bool:
        return other == PeerId("peer-001")

    for seed in range(15):
        for shuns in (one_sided, everybody_shuns):
            locked = run_matching(count, 0.0, seed, shuns=shuns)
            assert all(partner is None or locked[partner] == me for me, partner in locked.items()), f"seed {seed}"
            assert sum(partner is None for partner in locked.values()) == count % 2, f"seed {seed}"


@pytest.mark.parametrize("count", [2, 3, 8, 17, 33])
@pytest.mark.parametrize("late", [0.1, 0.5, 1.0])
def test_locks_are_mutual_however_late_the_answers_are(count: int, late: float) -> None:
    for seed in range(15):
        locked = run_matching(count, 0.0, seed, trusts=one_sided if seed % 2 else nobody, late=late)
        assert all(partner is None or locked[partner] == me for me, partner in locked.items()), f"seed {seed}"
        assert sum(partner is None for partner in locked.values()) == count % 2, f"seed {seed}"


def test_a_silent_candidate_is_not_waited_for_and_few_are_asked_at_once() -> None:
    me, *others = peers(12)
    order = ranked(me, others)
    mine = pairing(me, others)
    for number in range(MOST_OUT):
        assert [send.to for send in mine.actions(0.0)] == [order[number]]
        assert mine.actions(0.0) == []
        mine.on_late(order[number])
    assert mine.actions(0.0) == []
    assert mine.wake_at() is None
    assert not mine.exhausted
    mine.on_failed(order[0], "not answering")
    assert [send.to for send in mine.actions(0.0)] == [order[MOST_OUT]]
    mine.on_answer(order[1], Answer(Verdict.HELD), 0.0)
    mine.on_answer(order[MOST_OUT], Answer(Verdict.TAKEN), 0.0)
    assert [send.to for send in mine.actions(POLL_S)] == [order[1]], "one that answers is a candidate again"


def test_a_late_lock_waits_for_the_offer_in_flight_and_is_taken_back_if_that_one_locks() -> None:
    me, *others = peers(4)
    first, second, third = ranked(me, others)
    mine = pairing(me, others)
    mine.actions(0.0)
    mine.on_late(first)
    mine.actions(0.0)
    mine.on_answer(first, Answer(Verdict.LOCKED), 1.0)
    assert mine.locked is None
    assert mine.on_offer(first, 1.0).verdict is Verdict.LATER, "its heartbeat hears that it is not confirmed yet"
    assert mine.on_offer(third, 1.0).verdict is Verdict.HELD
    mine.on_answer(second, Answer(Verdict.LOCKED), 1.0)
    assert mine.locked == second
    assert {send.to for send in mine.actions(1.0) if send.offer.withdraw} == {first, third}


def test_a_late_lock_is_taken_when_the_offer_in_flight_comes_to_nothing() -> None:
    me, *others = peers(4)
    first, second, _ = ranked(me, others)
    for ends in (
        lambda mine: mine.on_late(second),
        lambda mine: mine.on_failed(second, "refusing"),
        lambda mine: mine.on_answer(second, Answer(Verdict.HELD), 1.0),
    ):
        mine = pairing(me, others)
        mine.actions(0.0)
        mine.on_late(first)
        mine.actions(0.0)
        mine.on_answer(first, Answer(Verdict.LOCKED), 1.0)
        ends(mine)
        assert mine.locked == first


def test_a_lock_ends_whoever_asked_for_it_when_the_other_takes_it_back() -> None:
    me, *others = peers(4)
    best, second, third = ranked(me, others)
    mine = pairing(me, others)
    assert mine.on_offer(best, 0.0).verdict is Verdict.LOCKED
    mine.on_withdraw(best)
    assert mine.locked is None
    assert [send.to for send in mine.actions(0.0)] == [second]
    mine.on_answer(second, Answer(Verdict.LOCKED), 0.0)
    mine.on_withdraw(second)
    assert mine.locked is None
    assert [send.to for send in mine.actions(0.0)] == [third]
    assert mine.solo_reason() == "3 candidates: 2 let go of us, 1 undecided"


def test_those_that_did_not_answer_lately_are_asked_last_unless_they_call() -> None:
    me, *others = peers(6)
    order = ranked(me, others)
    mine = Matching(RUN, KEY, me, unanswering=lambda: set(order[:4]))
    mine.add(others)
    assert [send.to for send in mine.actions(0.0)] == [order[4]]
    assert mine.on_offer(order[1], 0.0).verdict is Verdict.HELD
    mine.on_answer(order[4], Answer(Verdict.TAKEN), 0.0)
    assert [send.to for send in mine.actions(0.0)] == [order[1]]
    mine.on_answer(order[1], Answer(Verdict.TAKEN), 0.0)
    assert [send.to for send in mine.actions(0.0)] == [order[0]]


def test_one_that_only_calls_does_not_lose_its_rank_for_not_answering() -> None:
    me, *others = peers(4)
    best, second, _ = ranked(me, others)
    mine = Matching(RUN, KEY, me, unanswering=lambda: {best})
    mine.add(others, {best, second})
    assert mine.on_offer(second, 0.0, reach=Reach.NONE).verdict is Verdict.HELD
    assert mine.on_offer(best, 0.0, reach=Reach.NONE).verdict is Verdict.LOCKED
