"""Rations of one-way state: states, artifacts and fragments that are given and bring nothing back.

Keys are free, so a key has a ration, and all keys of an address block have one together. Rations hold while proven
peers want state. What they leave is for anybody: a newcomer of a calm hour has all of it. Exchanges bring as much as
they take, and have no ration. The module is pure."""

from __future__ import annotations

import math

from peer.protocol.endpoints import HERE
from peer.protocol.messages import PeerId
from peer.protocol.token_bucket import Rate, TokenBuckets

WANTED_S = 60.0
"""Seconds for which rations hold after a proven peer asked for state."""
LEAST_STATE = 64 * 2**20
"""Bytes. Smaller models are rationed as if they had this size."""
PERIOD_S = 3600.0
OF_A_KEY = 1.5
"""States in a period: a whole one, and what is fetched twice."""
OF_A_BLOCK = 5.0
"""States in a period: several homes may be behind one address."""


class StateRation:
    """The bytes that strangers were given. Times in seconds."""

    def __init__(self, least: float = LEAST_STATE) -> None:
        """`least`: bytes that a state is taken for, at least."""
        self._least = least
        self._wanted_at = -math.inf
        self._state_nbytes = 0
        self._keys: TokenBuckets[PeerId] = TokenBuckets(self._rate(OF_A_KEY))
        self._blocks: TokenBuckets[str] = TokenBuckets(self._rate(OF_A_BLOCK))

    def set_state_size(self, nbytes: int) -> None:
        """Set the bytes of a complete state."""
        self._state_nbytes = nbytes

    def wanted(self, now: float) -> None:
        """Note that a proven peer asks for state."""
        self._wanted_at = now

    def wait_s(self, peer: PeerId, block: str, nbytes: int, now: float) -> float:
        """Return the seconds until a stranger of this address block may have so many bytes; 0: now."""
        if now - self._wanted_at > WANTED_S:
            return 0.0
        of_key = self._keys.lacks_s(peer, now, nbytes, self._rate(OF_A_KEY))
        of_block = self._blocks.lacks_s(block, now, nbytes, self._rate(OF_A_BLOCK))
        return of_key if block == HERE else max(of_key, of_block)

    def give(self, peer: PeerId, block: str, nbytes: int, now: float) -> None:
        """Count what a stranger is given, also while nobody else wants any."""
        self._keys.charge(peer, now, nbytes, self._rate(OF_A_KEY))
        self._blocks.charge(block, now, nbytes, self._rate(OF_A_BLOCK))

    def _rate(self, states: float) -> Rate:
        burst = states * max(self._state_nbytes, self._least)
        return Rate(burst / PERIOD_S, burst)
