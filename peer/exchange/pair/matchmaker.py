"""Answers the offers and swaps of other peers, for all rounds in which this peer looks for a partner or has one. With
streamed fragments several rounds are open at once, since the next one begins while the payload of the last is still
being transferred."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from peer.exchange.pair.context import PairContext
from peer.exchange.pair.search import PartnerSearch
from peer.protocol.messages import Answer, Offer, PeerId, RoundKey, Verdict

REMEMBER_ROUNDS = 8


class Matchmaker:
    """Answers offers and swaps of other peers from the searches of the open rounds. Never blocks."""

    def __init__(self, context: PairContext, no_exchange_reason: Callable[[], str] = lambda: "") -> None:
        """`no_exchange_reason`: returns why this peer takes no new partner now, as text for a person; empty if it
        does."""
        self._context = context
        self._open: OrderedDict[RoundKey, PartnerSearch] = OrderedDict()
        self._past: OrderedDict[RoundKey, PeerId] = OrderedDict()
        self._latest: RoundKey | None = None
        self._no_exchange_reason = no_exchange_reason

    def open(self, key: RoundKey, opens_at: float, closes_at: float) -> PartnerSearch:
        """Begin a new round. The caller runs the search and finishes it with `end`."""
        assert key not in self._open, key
        search = self._open[key] = PartnerSearch(self._context, key, opens_at, closes_at)
        self._latest = key if self._latest is None else max(self._latest, key)
        return search

    def end(self, search: PartnerSearch) -> None:
        """Close the round. Heartbeats of the partner are still answered with `locked`, unless we sat the round out."""
        search.close()
        self._open.pop(search.key, None)
        if search.locked is not None and search.begun:
            self._past[search.key] = search.locked
            while len(self._past) > REMEMBER_ROUNDS:
                self._past.popitem(last=False)

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        self._context.peer_table.detector.heard(sender, "it called")
        answer, reach = self._answer(sender, offer), self._context.peer_table.own_reach(sender)
        return answer if answer.reach == reach else replace(answer, reach=reach)

    def _answer(self, sender: PeerId, offer: Offer) -> Answer:
        if self._past.get(offer.key) == sender:
            return Answer(Verdict.LOCKED)
        if not offer.withdraw and (why := self._context.reputation.exclusion_reason(sender)):
            return Answer(Verdict.REFUSED, reason=f"standing: {why}")
        if sender in self._context.peer_table.banned():
            return Answer(Verdict.REFUSED, reason="banned by the operator")
        search = self._open.get(offer.key)
        if search is not None:
            return search.on_offer(sender, offer)
        if why := self._no_exchange_reason():
            return Answer(Verdict.TAKEN, reason=why)
        if self._ahead(offer.key):
            return Answer(Verdict.LATER, eta_s=1.0, reason="not in that round yet")
        return Answer(Verdict.TAKEN, reason="past that round")

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        """Answer a peer that wants to swap; only the locked partner may."""
        if why := self._context.reputation.exclusion_reason(sender):
            return Answer(Verdict.REFUSED, reason=f"standing: {why}")
        search = self._open.get(key.whole)
        if search is not None:
            return search.on_swap(sender)
        if self._ahead(key.whole):
            return Answer(Verdict.LATER, eta_s=1.0)
        return Answer(Verdict.TAKEN, reason="not locked with you in this round")

    def _ahead(self, key: RoundKey) -> bool:
        return self._latest is None or key > self._latest
