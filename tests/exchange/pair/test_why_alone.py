"""The text for a volunteer when a round found no partner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.exchange.pair.context import PairContext
from peer.exchange.pair.search import PartnerSearch
from peer.membership.reputation import Reputation
from peer.protocol.messages import PeerId, Reach, RoundKey, RunId
from peer.protocol.pair.stranger_budget import MOST_S, StrangerBudget

A, B, C = (PeerId(name) for name in "abc")


def alone_with(reputation: Reputation, candidates: list[PeerId], training: int) -> str:
    detector = SimpleNamespace(trips=SimpleNamespace(usual=lambda: 0.0), asked_last=set)
    peer_table = SimpleNamespace(
        detector=detector,
        own_reach=lambda: Reach.DIRECT,
        others_training=lambda: training,
        candidates=lambda round_: list(candidates),
    )
    context = PairContext(RunId(b"r" * 32), PeerId("me"), *cast(Any, (None, None, peer_table, reputation)))
    return PartnerSearch(context, RoundKey(3, 0), 0.0, 10.0).solo_reason()


@pytest.fixture
def reputation() -> Reputation:
    reputation = Reputation(lambda: 100.0, lambda event: None)
    reputation.stranger_budget = StrangerBudget(10.0)
    return reputation


def test_nobody_is_there(reputation: Reputation) -> None:
    assert alone_with(reputation, [], 0) == "no other peer is known"


def test_strangers_are_there_and_not_tried(reputation: Reputation) -> None:
    reputation.stranger_budget.mark_known(A)
    reputation.stranger_budget.charge(MOST_S, 100.0)
    reputation.penalize(C, "digest", "wrong bytes")
    said = alone_with(reputation, [B, C], 2)
    assert said.startswith("2 train and none is to be tried now: 1 out of favour, 1 never exchanged with us")
    assert "held up our trainer" in said
    assert reputation.unacceptable_reason([A]) == "", "one that has exchanged with us is tried"


def test_those_that_the_view_leaves_out(reputation: Reputation) -> None:
    assert "met too often lately" in alone_with(reputation, [], 3)
