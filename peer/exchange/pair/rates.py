"""Measures the rates of swaps, and computes from them how long the next swap may take."""

from __future__ import annotations

import math
from collections import OrderedDict

from peer.exchange.deadlines import ASSUMED_RATE, RELAYED_PART, transfer_s
from peer.protocol.messages import PathKind, PeerId, SwapReport

LEAST_S = 1e-3
"""Least duration of a swap in seconds; a shorter one gives no meaningful rate."""
MAX_PARTNERS = 256


class SwapRates:
    """The rate of each partner, and one common rate of all swaps over relays.

    A rate over a relay depends less on the partner than on the relay's other traffic, so it is not kept for each
    partner."""

    def __init__(self, assumed: float = ASSUMED_RATE, longest_s: float = math.inf) -> None:
        """`assumed`: bytes per second of a partner before the first measurement. `longest_s`: most seconds of a swap
        over a relay."""
        self._assumed = assumed
        self._longest_s = longest_s
        self._partners: OrderedDict[PeerId, float] = OrderedDict()
        self._relayed: float | None = None

    def budget_s(self, partner: PeerId, nbytes: int, cap: float | None, *, relayed: bool) -> float:
        """Return the seconds that a transfer may take. `cap`: of our own upload, bytes per second; None: no cap.
        `relayed`: the swap passes a relay unless hole punching succeeds."""
        known = self._partners.get(partner)
        rate = known or min([self._assumed, *self._partners.values()])
        if relayed:
            rate = min(known or math.inf, self._relayed or self._assumed * RELAYED_PART)
        budget_s = transfer_s(nbytes, rate if cap is None else min(rate, cap))
        return min(budget_s, self._longest_s) if relayed else budget_s

    def learn(self, partner: PeerId, report: SwapReport) -> None:
        """Update the rates with a successful swap."""
        rate = report.bytes_received / max(report.seconds, LEAST_S)
        if report.way.path is PathKind.RELAYED:
            self._relayed = 0.5 * ((self._relayed or rate) + rate)
            return
        self._partners[partner] = 0.5 * (self._partners.get(partner, rate) + rate)
        while len(self._partners) > MAX_PARTNERS:
            self._partners.popitem(last=False)
