"""Releases a locked partner before its round is due, in time for it to find another one."""

from __future__ import annotations

from peer.errors import ExchangeError
from peer.exchange.pair.context import PairContext
from peer.protocol.messages import Offer, PeerRecord, RoundKey

CALLS = 3.0
"""Round trips that a partner needs: one to learn of our withdrawal, and two to lock with another peer."""
MOST_S = 1.0
"""Most seconds for these calls, because leaving and pausing wait for them."""


def hand_over_s(context: PairContext) -> float:
    """Return the seconds that a released partner needs to find another one."""
    return min(CALLS * context.peer_table.detector.trips.usual(), MOST_S)


async def withdraw(context: PairContext, partner: PeerRecord | None, key: RoundKey) -> bool:
    """Send a locked partner the notice that we sit the round out. Return whether it answered. A partner that did not
    answer learns of the withdrawal from our reply to its next call. `partner` None: its address is not known."""
    if partner is None:
        return False
    try:
        await context.transport.offer(partner, Offer(key, withdraw=True), MOST_S)
    except ExchangeError:
        return False
    return True
