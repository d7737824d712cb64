"""Rations for one-way transfers: states, artifacts and fragments, for which the receiver gives nothing back.

A key costs nothing, so each key has a ration, and all keys of an address block share one. Rations apply only while
proven peers request state, so that otherwise strangers may use the whole capacity. Exchanges transfer as much in both
directions and have no ration. The module is pure."""

from __future__ import annotations

import math

from peer.protocol.endpoints import HERE
from peer.protocol.messages import PeerId
from peer.protocol.token_bucket import Rate, TokenBuckets

WANTED_S = 60.0
"""Seconds for which rations apply after a proven peer requested state."""
LEAST_STATE = 64 * 2**20
"""Bytes. Smaller models are rationed as if they had this size."""
PERIOD_S = 3600.0
OF_A_KEY = 1.5
"""States per `PERIOD_S` for one key: one, and some repeated pieces."""
OF_A_BLOCK = 5.0
"""States per `PERIOD_S` for one address block, because several homes may share an address."""


class StateRation:
    """Counts the bytes sent to strangers. Times in seconds."""

    def __init__(self, least: float = LEAST_STATE) -> None:
        """`least`: minimum bytes that a state counts for."""
        self._least = least
        self._wanted_at = -math.inf
        self._state_nbytes = 0
        self._keys: TokenBuckets[PeerId] = TokenBuckets(self._rate(OF_A_KEY))
        self._blocks: TokenBuckets[str] = TokenBuckets(self._rate(OF_A_BLOCK))

    def set_state_size(self, nbytes: int) -> None:
        """Set the bytes of a complete state."""
        self._state_nbytes = nbytes

    def note_demand(self, now: float) -> None:
        """Record that a proven peer requests state."""
        self._wanted_at = now

    def wait_s(self, peer: PeerId, block: str, nbytes: int, now: float) -> float:
        """Return the seconds until a stranger of this address block may have `nbytes` bytes; 0: now."""
        if now - self._wanted_at > WANTED_S:
            return 0.0
        of_key = self._keys.lacks_s(peer, now, nbytes, self._rate(OF_A_KEY))
        of_block = self._blocks.lacks_s(block, now, nbytes, self._rate(OF_A_BLOCK))
        return of_key if block == HERE else max(of_key, of_block)

    def charge(self, peer: PeerId, block: str, nbytes: int, now: float) -> None:
        """Count bytes that are sent to a stranger, also while no ration applies."""
        self._keys.charge(peer, now, nbytes, self._rate(OF_A_KEY))
        self._blocks.charge(block, now, nbytes, self._rate(OF_A_BLOCK))

    def _rate(self, states: float) -> Rate:
        burst = states * max(self._state_nbytes, self._least)
        return Rate(burst / PERIOD_S, burst)
