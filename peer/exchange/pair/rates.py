"""How fast swaps were, and how long the next one may take: never by a constant alone."""

from __future__ import annotations

import math
from collections import OrderedDict

from peer.exchange.deadlines import ASSUMED_RATE, RELAYED_PART, transfer_s
from peer.protocol.messages import PathKind, PeerId, SwapReport

LEAST_S = 1e-3
"""Seconds that a swap takes at least: less says nothing about a rate."""
MAX_PARTNERS = 256


class SwapRates:
    """The rates of each partner, and that of swaps over relays.

    The rate over a relay is hardly the partner's own: it depends on what else the relay passes on. So there is one for
    all of them."""

    def __init__(self, assumed: float = ASSUMED_RATE, longest_s: float = math.inf) -> None:
        """`assumed`: bytes per second of a partner before anything was measured. `longest_s`: seconds that a swap over
        a relay may take at most."""
        self._assumed = assumed
        self._longest_s = longest_s
        self._partners: OrderedDict[PeerId, float] = OrderedDict()
        self._relayed: float | None = None

    def budget_s(self, partner: PeerId, nbytes: int, cap: float | None, *, relayed: bool) -> float:
        """Return how long a transfer may take. `cap`: of our own upload. `relayed`: it passes a relay, unless a hole is
        punched."""
        known = self._partners.get(partner)
        rate = known or min([self._assumed, *self._partners.values()])
        if relayed:
            rate = min(known or math.inf, self._relayed or self._assumed * RELAYED_PART)
        budget_s = transfer_s(nbytes, rate if cap is None else min(rate, cap))
        return min(budget_s, self._longest_s) if relayed else budget_s

    def learn(self, partner: PeerId, report: SwapReport) -> None:
        """Take the rate of a swap that succeeded."""
        rate = report.bytes_received / max(report.seconds, LEAST_S)
        if report.way.path is PathKind.RELAYED:
            self._relayed = 0.5 * ((self._relayed or rate) + rate)
            return
        self._partners[partner] = 0.5 * (self._partners.get(partner, rate) + rate)
        while len(self._partners) > MAX_PARTNERS:
            self._partners.popitem(last=False)
