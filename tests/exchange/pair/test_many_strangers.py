"""A partner search in a flood of strangers: which peers are candidates, which offers are accepted, and in which
order."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.exchange.pair.context import PairContext
from peer.exchange.pair.search import PartnerSearch
from peer.membership.reputation import Reputation
from peer.protocol.messages import Offer, PeerId, PeerRecord, Reach, RoundKey, RunId, Status, Verdict
from peer.protocol.pair.address_quota import PLACES, QUOTA
from peer.protocol.pair.probe_verdict import RUNNING
from peer.protocol.pair.proven import NEEDED, unbiased
from peer.protocol.pair.stranger_budget import StrangerBudget

RUN, ME = RunId(b"r" * 32), PeerId("me")
BIASED = next(round_ for round_ in range(9) if not unbiased(RUN, round_))
FAIR = next(round_ for round_ in range(9) if unbiased(RUN, round_))


def record(name: str, endpoint: str) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, (endpoint,), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


FLOOD = [record(f"key {number}", f"198.51.100.{number}:1") for number in range(200)]
FRIENDS = [record(f"friend {number}", f"198.51.100.{number}:2") for number in range(4)]


@dataclasses.dataclass
class Surrounding:
    """The peers that a search sees: friends and a flood of strangers."""

    reputation: Reputation
    peers: dict[PeerId, PeerRecord]

    def search(self, round_: int) -> PartnerSearch:
        detector = SimpleNamespace(
            trips=SimpleNamespace(usual=lambda: 0.0),
            membership=SimpleNamespace(peers_out=lambda: frozenset()),
            asked_last=set,
        )
        peer_table = SimpleNamespace(
            detector=detector,
            peers=self.peers,
            own_reach=lambda: Reach.DIRECT,
            is_open=lambda peer: True,
            near=tuple,
            own_endpoints=lambda: ("192.0.2.1:1",),
            uncallable=frozenset,
            relayed=frozenset,
            others_training=lambda: len(self.peers),
            live=lambda: len(self.peers) + 1,
            candidates=lambda round_, proven: list(self.peers),
            acquaintance=SimpleNamespace(met_too_often=lambda *of: False),
        )
        clock = SimpleNamespace(now=lambda: 5.0)
        context = PairContext(RUN, ME, *cast(Any, (None, clock, peer_table, self.reputation)))
        search = PartnerSearch(context, RoundKey(round_, 0), 0.0, 10.0)
        search._update_candidates()
        return search


@pytest.fixture
def context() -> Surrounding:
    reputation = Reputation(lambda: 5.0, lambda event: None)
    for friend in FRIENDS:
        for _ in range(NEEDED):
            reputation.proven.accepted(friend.peer_id)
    return Surrounding(reputation, {one.peer_id: one for one in (*FLOOD, *FRIENDS)})


def test_friends_go_first_and_of_a_flood_few_are_looked_at(context: Surrounding) -> None:
    search = context.search(BIASED)
    assert len(search._matching._candidates) == QUOTA + len(FRIENDS)
    (send,) = search._matching.actions(5.0)
    assert send.to in {"friend 0", "friend 1", "friend 2"}
    assert send.offer.proven


def test_in_a_fair_round_nobody_goes_first(context: Surrounding) -> None:
    search = context.search(FAIR)
    assert search._matching._proven == set()
    assert len(search._matching._candidates) == QUOTA + len(FRIENDS)


def test_strangers_over_the_quota_hear_taken_listed_or_not(context: Surrounding) -> None:
    search = context.search(BIASED)
    verdicts = [search.on_offer(key.peer_id, Offer(search.key)).verdict for key in FLOOD]
    assert verdicts.count(Verdict.TAKEN) == len(FLOOD) - QUOTA
    unlisted = search.on_offer(PeerId("unlisted"), Offer(search.key))
    assert unlisted.verdict is Verdict.TAKEN
    assert "many strangers" in unlisted.reason
    context.reputation.proven.revoke(FRIENDS[0].peer_id)
    few = Surrounding(context.reputation, {one.peer_id: one for one in FLOOD[:PLACES]}).search(BIASED)
    assert few.on_offer(PeerId("unlisted"), Offer(few.key)).verdict is not Verdict.TAKEN


def test_a_person_reads_that_strangers_wait(context: Surrounding) -> None:
    said = context.search(BIASED).solo_reason()
    assert f"; {len(FLOOD) - QUOTA} strangers of crowded address blocks wait" in said


def test_status_tells_the_proven_and_how_many_strangers_wait(context: Surrounding) -> None:
    assert context.reputation.strangers() == (len(FRIENDS), 0)
    context.search(BIASED)
    assert context.reputation.strangers() == (len(FRIENDS), len(FLOOD) - QUOTA)


def test_the_invited_are_no_strangers(context: Surrounding) -> None:
    context.reputation.limit_strangers(StrangerBudget(None), invited={key.peer_id for key in FLOOD})
    assert len(context.search(BIASED)._matching._candidates) == len(context.peers)


def test_a_last_choice_waits_for_the_others(context: Surrounding) -> None:
    for round_ in range(RUNNING):
        context.reputation.last_choices.refused(PeerId("friend 3"), round_)
    search = context.search(BIASED)
    assert search.on_offer(PeerId("friend 3"), Offer(search.key, proven=True)).verdict is Verdict.TAKEN
