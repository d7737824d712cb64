"""The choice of donors, as tables of plain values."""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

import pytest

from peer.protocol.messages import PeerId, PeerRecord, Piece, RunId, StateIndex, Status
from peer.protocol.policy.donors import (
    ALONE_S,
    BACKOFF_S,
    BUSY_S,
    BUSY_TRIES,
    CLOSE_SYNCS,
    COMPARED_ROUNDS,
    EARLY_ROUNDS,
    FETCH_SHARE,
    FIRST_ROUNDS,
    KEEP_AGAIN_S,
    KEPT_ROUNDS,
    LEAST_WINDOWS,
    MAX_ASKED,
    MAX_DONORS,
    MAX_NODES,
    MEAN_DONORS,
    MOST_RMS,
    MOST_SINGLES,
    NETWORKS,
    OLD_ROUNDS,
    RECRUIT_FIRST_S,
    RECRUIT_S,
    REFUSED_S,
    RESUME_WITHIN,
    RETRY_S,
    SINGLES,
    SLOW_S,
    UNTRAINED,
    WORSE_BY,
    DonorPolicy,
    Offers,
    SingleStates,
    SnapshotOffer,
    StateLosses,
    WeighedState,
    busy_wait_s,
    clearly_better,
    discard_reason,
    donors_of_last,
    donors_of_mean,
    donors_of_reset,
    doubt_reason,
    first_state_refusal,
    impossible_reason,
    judge_checkpoint,
    keep_again_s,
    kept_state_refusal,
    mean_exclusion_reason,
    recruit_pauses,
    retry_wait_s,
    states_apart,
    too_large_reason,
    too_old_reason,
    with_own_state,
)

HOME = "203.0.113.7:1"
S, T, P, F, E = Status.SERVING, Status.TRAINING, Status.PAUSED, Status.FINISHED, Status.ENDED


def record(name: str, round_: int = 40, status: Status = T, at: str = "") -> PeerRecord:
    where = (at,) if at else ()
    return PeerRecord(PeerId(name), RunId(b"r" * 32), where, True, 1, 1, round_, 1.0, status, 0.0, 1e12)


def offer(name: str, round_: int = 40, status: Status = T, mark: str = "a", block: str = "") -> SnapshotOffer:
    index = StateIndex("s", round_, b"", (Piece(0, 1, 4, b"d" * 32),))
    return SnapshotOffer(record(name, round_, status), index, mark, block)


class Signed(NamedTuple):
    round: int
    digest: str


def names(offers: list[SnapshotOffer]) -> set[str]:
    return {one.donor.peer_id for one in offers}


def pairs(**given: object) -> DonorPolicy:
    return DonorPolicy(momentum=False, **given)  # type: ignore[arg-type]


def group(**given: object) -> DonorPolicy:
    return DonorPolicy(momentum=True, **given)  # type: ignore[arg-type]


# -- whom to ask -----------------------------------------------------------------------------------------------------


def test_peers_that_are_easy_to_call_train_and_are_fast_come_first() -> None:
    policy = pairs()
    policy.rates.observe(PeerId("fast"), 1000, 1.0)
    policy.rates.observe(PeerId("slow"), 10, 1.0)
    found = policy.candidates(
        [
            record("far"),
            record("joins", status=Status.JOINING),
            record("slow", at=HOME),
            record("node", status=S, at=HOME),
            record("unknown", at=HOME),
            record("fast", at=HOME),
        ],
        random.Random(0),
    )
    assert [one.peer_id for one in found] == ["fast", "slow", "unknown", "node", "far"]


def test_of_equal_donors_chance_decides() -> None:
    some = [record(str(number)) for number in range(20)]
    orders = {tuple(r.peer_id for r in pairs().candidates(some, random.Random(seed))) for seed in range(3)}
    assert len(orders) == 3


def test_a_wave_takes_one_of_each_network_in_turn() -> None:
    crowd = [record(f"liar {n}", at=f"198.51.100.{n}:1") for n in range(8 * MAX_ASKED)]
    others = [record(f"honest {n}", at=f"203.0.{n}.7:1") for n in range(NETWORKS)]
    policy = pairs()
    wave = [one.peer_id for one in policy.next_wave([*crowd, *others], ())]
    assert len(wave) == MAX_ASKED
    assert set(wave[: NETWORKS + 1]) == {"liar 0", *(f"honest {n}" for n in range(NETWORKS))}
    assert wave[0] not in [one.peer_id for one in policy.next_wave([*crowd, *others], {PeerId(wave[0])})]


def test_nodes_and_proven_peers_are_asked_in_any_crowd_unless_they_were_silent() -> None:
    crowd = [record(f"stranger {n}", at=f"198.51.{n}.1:1") for n in range(2 * MAX_ASKED)]
    known = [record("node", status=S, at="192.0.2.1:1"), record("proven", at="203.0.113.1:1")]
    policy = pairs(nodes={PeerId("node")}, proven={PeerId("proven")})
    assert [one.peer_id for one in policy.next_wave([*crowd, *known], ())][:2] == ["node", "proven"]
    policy.mark_silent(PeerId("node"))
    policy.mark_invalid(PeerId("proven"))
    assert {"node", "proven"}.isdisjoint(one.peer_id for one in policy.next_wave([*crowd, *known], ()))


def test_enough_networks_are_those_where_donors_answered_not_those_that_records_name() -> None:
    known = [record(f"p{n}", at=f"198.51.{n}.7:1") for n in range(NETWORKS + 1)]
    for same, enough in ((True, False), (False, True)):
        policy, offers = pairs(), Offers()
        for n, one in enumerate(known[:NETWORKS]):
            assert not policy.enough(offers, known)
            address = "192.0.2.7:1" if same else f"198.51.{n}.7:1"
            index = offer("x").index
            policy.offer(offers, one, index, mark="a", address=address, run_round=40)
        assert policy.enough(offers, known) is enough


@pytest.mark.parametrize(
    ("policy", "marks", "wanted", "again"),
    [
        (group(), ("a", "b"), "", True),
        (group(), ("a", "a"), "", False),
        (group(), ("a", "b"), "b", False),
        (pairs(), ("a", "b"), "", False),
    ],
    ids=["a group differs", "it agrees", "one has the wanted state", "pairs always differ"],
)
def test_donors_of_a_group_that_differ_are_asked_again(
    policy: DonorPolicy, marks: tuple[str, ...], wanted: str, again: bool
) -> None:
    offers = Offers([offer(str(number), mark=mark) for number, mark in enumerate(marks)])
    assert policy.ask_again(offers, wanted) is again


# -- when one is asked again -----------------------------------------------------------------------------------------


def test_lost_donors_come_back_soon_refused_ones_later_and_liars_never() -> None:
    policy, some = pairs(), [record(name) for name in ("lost", "refused", "liar", "fine")]
    policy.lost([PeerId("lost")], 100.0)
    policy.refuse(PeerId("refused"), 100.0)
    policy.ban_donors([PeerId("liar")])

    def free(now: float) -> list[str]:
        return [one.peer_id for one in policy.available(some, now)]

    assert free(100.0) == ["fine"]
    policy.lost([PeerId("lost")], 105.0)
    assert free(100.0 + BACKOFF_S) == ["lost", "fine"], "the time counts from when it was first lost"
    policy.lost([PeerId("lost")], 110.0, all_now=True)
    assert free(110.0 + BACKOFF_S - 1) == ["fine"]
    assert free(100.0 + REFUSED_S) == ["lost", "refused", "fine"]


@pytest.mark.parametrize(
    ("busy", "eta_s", "wait_s"),
    [(1, 0.0, BUSY_S), (1, 3.0, 3.0), (1, 3600.0, 5 * BUSY_S), (BUSY_TRIES, 0.0, BUSY_S), (BUSY_TRIES + 1, 0.0, None)],
)
def test_a_busy_donor_is_asked_again_some_times(busy: int, eta_s: float, wait_s: float | None) -> None:
    assert busy_wait_s(busy, eta_s) == wait_s


@pytest.mark.parametrize(("eta_s", "wait_s"), [(0.0, RETRY_S), (4.0, 4.0), (1e9, BACKOFF_S)])
def test_the_next_attempt_waits_for_busy_donors(eta_s: float, wait_s: float) -> None:
    assert retry_wait_s(eta_s) == wait_s


def test_further_donors_are_looked_for_less_and_less_often() -> None:
    pauses = list(itertools.islice(recruit_pauses(), 6))
    assert pauses[:2] == [RECRUIT_FIRST_S, 2 * RECRUIT_FIRST_S]
    assert pauses[-1] == RECRUIT_S == max(pauses)


def test_a_fetch_gives_up_after_a_time_without_pieces_which_liars_do_not_prolong() -> None:
    policy = pairs(patience_s=60.0)
    assert not policy.gives_up(1e9)
    policy.begin(0.0)
    policy.progressed(50.0)
    assert not policy.gives_up(109.0)
    assert policy.waited_s(80.0) == 30.0
    policy.refuse(PeerId("liar"), 100.0)
    policy.progressed(105.0)
    assert policy.gives_up(110.0)


# -- which state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [S, E])
@pytest.mark.parametrize(
    ("round_", "announced", "run_round", "outdated"),
    [
        (0, 0, FIRST_ROUNDS, False),
        (0, 0, FIRST_ROUNDS + 1, True),
        (0, FIRST_ROUNDS + 1, 0, True),
        (7, 0, 7 + KEPT_ROUNDS, False),
        (7, 0, 7 + KEPT_ROUNDS + 1, True),
        (7, 7 + 2 * KEPT_ROUNDS, 0, False),
    ],
    ids=["first rounds", "past them", "the node has seen so", "recent", "not recent", "everybody left"],
)
def test_a_node_s_state_serves_while_it_is_recent(
    status: Status, round_: int, announced: int, run_round: int, outdated: bool
) -> None:
    assert bool(too_old_reason(record("node", announced, status), round_, run_round)) is outdated
    assert too_old_reason(record("peer", announced, T), round_, run_round) == ""


def test_an_offer_that_is_too_old_is_none_and_its_reason_is_kept() -> None:
    policy, offers, node = pairs(), Offers(), record("node", 0, S)
    policy.offer(offers, node, offer("node", 0).index, mark="a", address="192.0.2.7:1", run_round=57)
    assert offers.offered == []
    assert offers.problem() == "node: has only the first state, and the run has come to round 57"


def test_nobody_names_a_round_that_the_run_cannot_have_reached() -> None:
    offers = Offers([offer("a", 100), offer("liar", 101)])
    offers.bound(None)
    assert len(offers.offered) == 2
    offers.bound(100)
    assert names(offers.offered) == {"a"}
    assert "101" in offers.rejections[PeerId("liar")]


def test_no_donor_gives_another_first_state_than_the_one_that_was_signed() -> None:
    """In round 0 random params have the loss of an untrained model, so their loss does not reveal them."""
    offers = Offers([offer("liar", 0, mark="99"), offer("honest", 0, mark="11"), offer("later", 3, mark="22")])
    offers.ensure_first([Signed(25, "2222")])
    assert len(offers.offered) == 3, "without a digest of it any may be"
    offers.ensure_first([Signed(25, "2222"), Signed(0, "1111")])
    assert names(offers.offered) == {"honest", "later"}
    assert "signed" in offers.rejections[PeerId("liar")]


HONEST = [offer(f"honest {n}", mark="11", block=f"203.0.{n}") for n in range(5)]
ONE_BLOCK = [offer(f"liar {n}", mark="99", block="198.51") for n in range(6)]
BLOCKS = [offer(f"liar {n}", 41, mark="99", block=f"198.51.{n}") for n in range(9)]
NODE = offer("node", 25, S, mark="22", block="192.0")


@pytest.mark.parametrize(
    ("offered", "given", "wanted", "digests", "mark"),
    [
        ([*ONE_BLOCK, *HONEST], {}, "", (), "11"),
        ([*BLOCKS, *HONEST], {}, "", (), "99"),
        ([*BLOCKS, *HONEST], {"proven": {"honest 0"}}, "", (), "11"),
        ([*BLOCKS, HONEST[0], NODE], {"nodes": {"node"}, "proven": {"honest 0"}}, "", (Signed(25, "2222"),), "22"),
        ([*BLOCKS, HONEST[0], NODE], {}, "", (Signed(30, "3333"), Signed(25, "2222")), "22"),
        ([*HONEST, NODE], {}, "", (Signed(25, "2222"),), "11"),
        ([*HONEST, NODE], {}, "22", (), "22"),
        ([HONEST[0], NODE, offer("second node", 25, S, mark="22")], {}, "", (), "11"),
        ([NODE], {}, "", (), "22"),
        ([offer("a", 40, mark="11"), offer("b", 41, mark="22")], {}, "", (), "22"),
    ],
    ids=[
        "keys of one block do not outvote blocks",
        "the most blocks win",
        "but proven peers are believed first",
        "what was signed outranks both",
        "and is the newest that anybody offers",
        "where all peers agree no older one is taken",
        "pieces of the wanted one are here",
        "peers go before nodes",
        "a node is better than nobody",
        "of two that weigh the same the later",
    ],
)
def test_a_group_s_state_is_signed_or_elected(
    offered: list[SnapshotOffer], given: dict[str, set[str]], wanted: str, digests: tuple[Signed, ...], mark: str
) -> None:
    choice = group(**given).choose(offered, wanted, digests)
    assert {one.mark for one in choice.offers} == {mark}
    assert names(choice.offers) == names([one for one in offered if one.mark == mark])
    assert bool(choice.why) is (len(choice.offers) < len(offered)), "a choice has a reason"


@pytest.mark.parametrize(
    ("rounds", "chosen"),
    [
        ({"a": 100, "b": 100 - OLD_ROUNDS, "old": 100 - OLD_ROUNDS - 1}, {"a", "b"}),
        ({"a": 100, "b": 99, "liar": 160}, {"a", "b"}),
        ({"a": 100, "liar": 160}, {"liar"}),
    ],
    ids=["of near rounds", "of most", "of two the later"],
)
def test_a_pair_s_pieces_are_of_the_rounds_that_most_networks_are_in(rounds: dict[str, int], chosen: set[str]) -> None:
    offered = [offer(name, round_, block=name) for name, round_ in rounds.items()]
    choice = pairs().choose([*offered, offer("node", 100, S, block="n")])
    assert names(choice.offers) == chosen
    assert choice.why


def test_proven_donors_and_different_blocks_are_taken_first() -> None:
    some = [offer("a", block="1"), offer("b", block="1"), offer("c", block="2"), offer("proven", block="1")]
    order = [one.donor.peer_id for one in pairs(proven={"proven"}).choose(some).offers]
    assert order == ["proven", "c", "a", "b"]
    assert pairs().choose([]).offers == []


def test_who_gave_an_impossible_state_or_names_an_impossible_round_makes_no_state_look_old() -> None:
    policy = pairs()
    some = [record("a", 10), record("liar", 5000), record("refused", 900)]
    assert policy.run_round(some[:1]) == 10
    policy.refuse(PeerId("refused"), 0.0)
    assert policy.run_round(some, 100) == 10
    assert policy.run_round([], 100) == 0


def test_peers_left_out_are_named_with_the_reason() -> None:
    policy, offers = pairs(), Offers([offer("a", 100), offer("b", 100), offer("old", 7), offer("node", 99, S)])
    assert policy.left_out(offers, policy.choose(offers.offered)) == {
        "old": "it is of round 7, and does not go with the state of round 100 of the others"
    }


# -- from how many at once -------------------------------------------------------------------------------------------


def test_nodes_take_no_place_of_peers_and_peers_none_of_nodes() -> None:
    nodes = [f"node {n}" for n in range(MAX_NODES + 2)]
    policy = pairs(nodes=frozenset(nodes))
    some = [offer(f"peer {n}") for n in range(MAX_DONORS + 2)] + [offer(name, 39, S) for name in nodes]
    taken = [one.donor.peer_id for one in policy.take_places(policy.fitting(some, some[0], 2 * SLOW_S))]
    assert [name.startswith("peer") for name in taken] == [True] * MAX_DONORS + [False] * MAX_NODES
    assert policy.take_places(some, taken) == []
    assert policy.take_places(some, taken[1:]) == [some[0]]
    assert not policy.has_place(taken, 2 * SLOW_S)
    peers = taken[:MAX_DONORS]
    found = [policy.has_place(asked, left_s) for asked, left_s in ((peers, 2 * SLOW_S), (peers, 0.0), (peers[1:], 0.0))]
    assert found == [True, False, True]


@pytest.mark.parametrize(
    ("behind", "known", "first", "fits"),
    [
        (1, True, 40, True),
        (CLOSE_SYNCS, True, 40, True),
        (CLOSE_SYNCS + 1, True, 40, False),
        (1, False, 40, False),
        (1, True, FIRST_ROUNDS + 1, False),
    ],
    ids=["near", "nearly far", "far behind", "a stranger that says it is a node", "the very first state"],
)
def test_pieces_of_which_nodes_are_mixed_in(behind: int, known: bool, first: int, fits: bool) -> None:
    policy = pairs(nodes={"node"} if known else set())
    node, home = offer("node", first - behind, S), offer("home", first)
    assert (policy.fitting([node], home, 2 * SLOW_S) == [node]) is fits
    assert policy.fitting([node], home, SLOW_S) == [], "where peers are fast nothing older is mixed in"


def test_rounds_of_a_streaming_run_are_parts_of_a_sync() -> None:
    old = offer("node", 40 - 4 * CLOSE_SYNCS, S)
    for fragments, fits in ((1, False), (4, True)):
        policy, peer = pairs(nodes={"node"}, fragments=fragments), offer("a")
        assert (policy.fitting([old], peer, 2 * SLOW_S) == [old]) is fits
        assert (policy.fitting([peer], old, 0.0) == [peer]) is fits, "a peer is welcome at any time"


def test_a_group_mixes_pieces_of_one_state_alone() -> None:
    same, other = offer("same", 7, mark="a"), offer("other", mark="b")
    assert group().fitting([same, other], offer("first", mark="a"), 0.0) == [same]


# -- weighing --------------------------------------------------------------------------------------------------------


GUESS = math.log(256)
LATE = EARLY_ROUNDS + 1


def losses(mean: float, spread: float = 0.1, count: int = 8) -> StateLosses:
    return StateLosses(tuple(mean + spread * (-1) ** n for n in range(count)), GUESS)


def test_a_trained_state_is_good_and_an_untrained_one_is_in_early_rounds() -> None:
    assert doubt_reason(losses(2.0), LATE) == ""
    assert doubt_reason(losses(GUESS + UNTRAINED / 2), EARLY_ROUNDS) == ""
    assert "no better than a guess" in doubt_reason(losses(GUESS), LATE)
    assert impossible_reason(losses(GUESS)) == ""


def test_more_than_an_untrained_model_is_impossible_but_for_the_windows_own_spread() -> None:
    assert "untrained" in impossible_reason(losses(GUESS + 1.1 * UNTRAINED))
    assert impossible_reason(losses(GUESS + 1.1 * UNTRAINED, spread=2.0)) == ""


@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_impossible(wild: float) -> None:
    found = StateLosses((*losses(2.0).windows, wild), GUESS)
    assert "not finite" in impossible_reason(found)
    assert clearly_better(losses(9.0, count=9), found)
    assert not clearly_better(found, losses(9.0, count=9))


def test_few_windows_say_nothing() -> None:
    assert doubt_reason(losses(99.0, count=LEAST_WINDOWS - 1), LATE) == ""


def test_better_is_what_chance_does_not_explain() -> None:
    assert clearly_better(losses(2.0), losses(2.1))
    assert not clearly_better(losses(2.1), losses(2.0))
    assert not clearly_better(losses(2.0), losses(2.0))
    noisy = StateLosses((2.0, 3.0, 1.0, 2.5), GUESS)
    assert not clearly_better(noisy, StateLosses((3.1, 1.0, 2.9, 1.9), GUESS))


def test_values_of_absurd_size_are_no_state() -> None:
    assert too_large_reason(0.02) == ""
    assert too_large_reason(1.01 * MOST_RMS)
    assert too_large_reason(math.inf)
    assert too_large_reason(math.nan)


def weighed(mean: float) -> WeighedState:
    return WeighedState(losses(mean), "", "")


def test_the_best_of_the_first_that_pass_is_taken() -> None:
    comparison = SingleStates(None)
    assert comparison.is_best(weighed(3.0))
    assert not comparison.decided
    assert comparison.is_best(weighed(2.0))
    assert comparison.decided
    assert SINGLES == 2
    assert not SingleStates(weighed(2.0)).is_best(weighed(2.0)), "it has to be better than what is here"


def test_single_states_of_donors_that_go_together_are_compared_first() -> None:
    some = [offer("old", 7, block="1"), *(offer(f"p{n}", block=str(n)) for n in range(MOST_SINGLES))]
    assert [one.donor.peer_id for one in pairs().singles(Offers(some))] == [f"p{n}" for n in range(MOST_SINGLES)]
    assert names(pairs().singles(Offers(some[:3]))) == {"p0", "p1", "old"}


# -- an own checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_", "live", "most", "resumes", "why"),
    [
        (40, None, None, True, "nobody else is known to train"),
        (40, 40 + RESUME_WITHIN, None, True, f"the run is in round {40 + RESUME_WITHIN}"),
        (40, 41 + RESUME_WITHIN, None, False, f"{RESUME_WITHIN + 1} rounds behind, more than {RESUME_WITHIN}"),
        (333 + RESUME_WITHIN, 330, 333, True, "the run is in round 330"),
        (334 + RESUME_WITHIN, 330, 333, False, "the run is in round 333 at most"),
        (334 + RESUME_WITHIN, 330, None, True, "the run is in round 330"),
    ],
    ids=["alone", "recent", "old", "ahead", "of another start of the run", "without a clock nobody can tell"],
)
def test_a_recent_checkpoint_wins(round_: int, live: int | None, most: int | None, resumes: bool, why: str) -> None:
    verdict = judge_checkpoint("checkpoint-3", round_, live, most)
    assert verdict.resumes is resumes
    assert why in verdict.why


# -- the operator's node ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "donors"),
    [((T, F, F), "12"), ((T, T, F), ""), ((T, F), ""), ((P, F), "1"), ((P, P), "01"), ((), "")],
)
def test_the_last_state_comes_from_those_who_finished_once_most_have(statuses: tuple[Status, ...], donors: str) -> None:
    some = [record(str(number), status=status) for number, status in enumerate(statuses)]
    assert "".join(one.peer_id for one in donors_of_last(some)) == donors


def test_states_are_kept_of_peers_and_a_reset_comes_from_nodes() -> None:
    some = [record("peer"), record("node", status=S), record("ended", status=E), record("joins", status=Status.JOINING)]
    assert [one.peer_id for one in with_own_state(some)] == ["peer"]
    assert [one.peer_id for one in donors_of_reset(some)] == ["node"]
    many = [record(str(number)) for number in range(5 * MEAN_DONORS)]
    assert len({one.peer_id for one in donors_of_mean(many, random.Random(0))}) == 2 * MEAN_DONORS


def test_what_is_good_enough_to_be_kept() -> None:
    late = COMPARED_ROUNDS + 1
    assert discard_reason(9.0, None, late) == ""
    assert discard_reason(9.0, 1.0, COMPARED_ROUNDS) == ""
    assert discard_reason(1.0 + WORSE_BY - 1e-9, 1.0, late) == ""
    assert "worse" in discard_reason(1.0 + WORSE_BY + 1e-6, 1.0, late)
    for loss in (math.nan, math.inf):
        assert str(loss) in discard_reason(loss, None, 0)
    assert mean_exclusion_reason(40, 40 + OLD_ROUNDS) == ""
    assert "far from the run's" in mean_exclusion_reason(40, 41 + OLD_ROUNDS)


def test_the_node_says_when_what_it_has_is_too_old() -> None:
    assert first_state_refusal(FIRST_ROUNDS) == ""
    assert "round 57" in first_state_refusal(57)
    assert kept_state_refusal(90 - KEPT_ROUNDS, 90, alone_s=0.0) == ""
    assert "round 90" in kept_state_refusal(39, 90, alone_s=0.0)
    assert kept_state_refusal(39, 90, alone_s=ALONE_S + 1) == ""


@pytest.mark.parametrize(
    ("good", "took_s", "next_s"),
    [(True, 1.0, 300.0), (False, 1.0, KEEP_AGAIN_S), (True, 300.0, 300.0 / FETCH_SHARE)],
)
def test_fetching_takes_a_small_part_of_the_time(good: bool, took_s: float, next_s: float) -> None:
    assert keep_again_s(good=good, every_s=300.0, took_s=took_s) == pytest.approx(next_s)


def apart(*places: float, trusted: frozenset[int] = frozenset()) -> set[int]:
    """Return the distances between states on a line."""
    return set(states_apart([[abs(one - other) for other in places] for one in places], trusted))


def test_a_state_lies_apart_from_three_on() -> None:
    assert apart(0.0) == apart(0.0, 100.0) == set()
    assert apart(0.0, 1.0, 100.0) == {2}
    assert apart(0.0, 1.0, 2.0, -50.0) == {3}
    assert apart(0.0, 1.0, 2.5, -1.5) == set()
    assert "away from the middle state" in states_apart([[0, 1, 9], [1, 0, 9], [9, 9, 0]])[2]


def test_the_middle_state_is_one_of_a_trusted_donor() -> None:
    liars = (100.0, 100.1, 100.2)
    assert apart(0.0, 1.0, *liars) == {0, 1}
    assert apart(0.0, 1.0, 2.0, *liars, trusted=frozenset({0, 1})) == {3, 4, 5}


def test_trusted_donors_are_asked_first_for_a_mean() -> None:
    donors = [record(f"p{number}") for number in range(20)]
    trusted = {donor.peer_id for donor in donors[15:]}
    for seed in range(5):
        drawn = donors_of_mean(donors, random.Random(seed), trusted)
        assert {donor.peer_id for donor in drawn[:5]} == trusted
        assert len(drawn) == 2 * MEAN_DONORS
