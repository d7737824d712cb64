"""A peer whose trainer has finished no step locks no partner, and does not claim to swap in a round without work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from peer.exchange.pair.matchmaker import Matchmaker
from peer.protocol.messages import Answer, Offer, Reach, Verdict
from tests.exchange.pair.test_no_room import OPEN, lock, search


def test_before_the_first_step_an_offer_is_put_off() -> None:
    steps = list[int]()
    made = search(Reach.DIRECT, OPEN, has_work=lambda: bool(steps))
    offer = Offer(made.key, reach=Reach.DIRECT)
    early = made.on_offer(OPEN.peer_id, offer)
    assert (early.verdict, early.reason) == (Verdict.LATER, "our trainer has not finished a step yet")
    assert made.locked is None
    steps.append(1)
    assert made.on_offer(OPEN.peer_id, offer).verdict in (Verdict.LOCKED, Verdict.HELD)
    steps.clear()  # the round has taken the work; the search must not look again
    assert made.on_offer(OPEN.peer_id, offer).verdict is not Verdict.LATER


def test_who_sat_the_round_out_no_longer_says_that_it_is_locked() -> None:
    for begun in (True, False):
        made = search(Reach.DIRECT, OPEN)
        partner = lock(made)
        made.begun = begun
        context = SimpleNamespace(reputation=made._context.reputation, peer_table=SimpleNamespace(banned=frozenset))
        maker = Matchmaker(cast(Any, context))
        maker._open[made.key] = made
        maker._latest = made.key
        maker.end(made)
        answer = maker._answer(partner, Offer(made.key))
        wanted = Answer(Verdict.LOCKED) if begun else Answer(Verdict.TAKEN, reason="past that round")
        assert answer == wanted
