"""A search whose swaps find no relay with room: after a few attempts, it gives up all candidates that need a relay."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.exchange.pair.context import PairContext, TrainerOutlook
from peer.exchange.pair.search import MOST_ROOMLESS, NO_ROOM, PartnerSearch
from peer.membership.reputation import Reputation
from peer.protocol.messages import (
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    Reach,
    RelayAddress,
    RoundKey,
    RunId,
    Status,
    Verdict,
)

RUN, ME = RunId(b"r" * 32), PeerId("me")
RELAY = RelayAddress(PeerId("relay"), "192.0.2.9:4810")
NOW = 5.0


def record(name: str, *, reachable: bool) -> PeerRecord:
    relays = () if reachable else (RELAY,)
    return PeerRecord(
        PeerId(name), RUN, ("192.0.2.7:1",), reachable, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0, relays=relays
    )


CLOSED = [record(f"closed {number}", reachable=False) for number in range(8)]
OPEN = record("open", reachable=True)


def search(own: Reach, *records: PeerRecord, has_work: Callable[[], bool] = lambda: True) -> PartnerSearch:
    peers = {one.peer_id: one for one in records}
    relayed = frozenset(one.peer_id for one in records if not one.reachable)
    detector = SimpleNamespace(
        trips=SimpleNamespace(usual=lambda: 0.0),
        membership=SimpleNamespace(peers_out=frozenset),
        asked_last=set,
    )
    peer_table = SimpleNamespace(
        detector=detector,
        peers=peers,
        near=frozenset,
        own_reach=lambda by=None: own,
        own_endpoints=lambda: ("192.0.2.1:1",),
        is_open=lambda peer: peer not in relayed,
        uncallable=frozenset,
        relayed=lambda: relayed,
        others_training=lambda: len(peers),
        live=lambda: len(peers) + 1,
        candidates=lambda round_, proven: list(peers),
        acquaintance=SimpleNamespace(met_too_often=lambda *of: False),
    )
    reputation = Reputation(lambda: NOW, lambda event: None)
    parts = None, SimpleNamespace(now=lambda: NOW), peer_table, reputation, TrainerOutlook(has_work=has_work)
    context = PairContext(RUN, ME, *cast(Any, parts))
    made = PartnerSearch(context, RoundKey(1, 0), 0.0, 10.0)
    made._update_candidates()
    return made


def lock(made: PartnerSearch) -> PeerId:
    """Offer to the best candidate, which accepts. Return it."""
    (send,) = made._matching.actions(NOW)
    made._matching.on_answer(send.to, Answer(Verdict.LOCKED, reach=Reach.RELAYED), NOW)
    assert made.locked == send.to
    return send.to


@pytest.mark.parametrize(
    ("own", "partner", "relayed"),
    [(Reach.RELAYED, CLOSED[0], True), (Reach.RELAYED, OPEN, False), (Reach.DIRECT, CLOSED[0], False)],
)
def test_a_swap_needs_a_relay_if_neither_can_be_dialled(own: Reach, partner: PeerRecord, relayed: bool) -> None:
    made = search(own, partner)
    (send,) = made._matching.actions(NOW)
    reach = Reach.DIRECT if partner.reachable else Reach.RELAYED
    made._matching.on_answer(send.to, Answer(Verdict.LOCKED, reach=reach), NOW)
    assert made.relayed is relayed


def test_after_a_few_partners_without_room_only_those_are_left_that_need_no_relay() -> None:
    made = search(Reach.RELAYED, *CLOSED, OPEN)
    made._matching._candidates[OPEN.peer_id] = 0  # it comes last
    made._matching._ranking = None
    for _ in range(MOST_ROOMLESS):
        made.lost_for_room(lock(made))
    (send,) = made._matching.actions(NOW)
    assert send.to == OPEN.peer_id
    made._matching.on_failed(OPEN.peer_id, "gone")
    assert made._matching.exhausted
    assert f"{len(CLOSED)} {NO_ROOM}" in made._matching.solo_reason()


def test_who_found_no_room_with_us_is_not_taken_again_in_this_round() -> None:
    made = search(Reach.RELAYED, *CLOSED)
    first = lock(made)
    made.lost_for_room(first)
    assert made.on_offer(first, Offer(made.key, reach=Reach.RELAYED)) == Answer(Verdict.TAKEN, reason=NO_ROOM)
    others = [one.peer_id for one in CLOSED if one.peer_id != first]
    assert made.on_offer(others[0], Offer(made.key, reach=Reach.RELAYED)).verdict is not Verdict.TAKEN


def test_once_it_is_clear_that_no_relay_has_room_all_who_need_one_hear_so() -> None:
    made = search(Reach.RELAYED, *CLOSED, OPEN)
    made._matching._candidates[OPEN.peer_id] = 0
    made._matching._ranking = None
    for _ in range(MOST_ROOMLESS):
        made.lost_for_room(lock(made))
    for one in CLOSED:
        assert made.on_offer(one.peer_id, Offer(made.key, reach=Reach.RELAYED)).reason == NO_ROOM
    assert made.on_offer(OPEN.peer_id, Offer(made.key)).verdict is not Verdict.TAKEN
