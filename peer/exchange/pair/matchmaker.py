"""The rounds in which this peer looks for a partner or has one, and who is told what when others ask. With streamed
fragments several are open at once: the next begins while a payload of the last still crosses the wire."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from peer.exchange.pair.context import PairContext
from peer.exchange.pair.search import PartnerSearch
from peer.protocol.messages import Answer, Offer, PeerId, RoundKey, Verdict

REMEMBER_ROUNDS = 8


class Matchmaker:
    """Answers offers and swaps of other peers from the state at hand; never blocks."""

    def __init__(self, context: PairContext, no_exchange_reason: Callable[[], str] = lambda: "") -> None:
        """`no_exchange_reason`: why no new partner is taken now, for a person; empty: one is."""
        self._context = context
        self._open: OrderedDict[RoundKey, PartnerSearch] = OrderedDict()
        self._past: OrderedDict[RoundKey, PeerId] = OrderedDict()
        self._latest: RoundKey | None = None
        self._no_exchange_reason = no_exchange_reason

    def open(self, key: RoundKey, opens_at: float, closes_at: float) -> PartnerSearch:
        """A new round; the owner runs the match and ends it with `end`."""
        assert key not in self._open, key
        search = self._open[key] = PartnerSearch(self._context, key, opens_at, closes_at)
        self._latest = key if self._latest is None else max(self._latest, key)
        return search

    def end(self, search: PartnerSearch) -> None:
        """The round is over. The partner's heartbeat still hears `locked`, unless we sat it out."""
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
        """Only the locked partner may swap."""
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
