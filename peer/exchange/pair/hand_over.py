"""Leaving a locked partner to others, before a round is due: what that takes, and how the partner hears of it."""

from __future__ import annotations

from peer.errors import ExchangeError
from peer.exchange.pair.context import PairContext
from peer.protocol.messages import Offer, PeerRecord, RoundKey

CALLS = 3.0
"""The partner hears of it in one call, and may need two more to lock with another."""
MOST_S = 1.0
"""Seconds for these calls at most. Leaving and pausing wait for them."""


def hand_over_s(context: PairContext) -> float:
    """Return how long a partner needs to find another, in seconds."""
    return min(CALLS * context.peer_table.detector.trips.usual(), MOST_S)


async def withdraw(context: PairContext, partner: PeerRecord | None, key: RoundKey) -> bool:
    """Tell a locked partner that we sit the round out. Return whether it heard that. One that did not hear it learns it
    when it asks. None: where it can be called is not known."""
    if partner is None:
        return False
    try:
        await context.transport.offer(partner, Offer(key, withdraw=True), MOST_S)
    except ExchangeError:
        return False
    return True
