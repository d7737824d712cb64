"""The score of a pair, which is the weight of its edge in the matching, and the choice of the side that dials. Every
peer computes the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from peer.protocol.messages import PeerId, Reach, RoundKey, RunId

MULTIPLIER = 0x9E3779B97F4A7C15
"""The golden ratio in 64 bits, an odd number (Knuth, vol. 3, 6.4)."""
LOW_BITS = 2**64 - 1
MAX_MARKS = 16384
"""Maximum peers of a run whose hashes are cached. When there are more, the cache is cleared."""


def score(run_id: RunId, key: RoundKey, one: PeerId, other: PeerId) -> int:
    """Return the score of a pair in a round: 64 bits, the same on every peer. The hash is keyed by the run id, so that
    nobody can prepare peer ids before the manifest is written."""
    return RoundScores(run_id, key).of([one], other)[one]


class RoundScores:
    """The scores of one (round, fragment).

    Each peer has one keyed hash and so has the round. A pair's score is a multiplicative hash of all three
    (Dietzfelbinger et al. 1997): its high bits, by which pairs are ranked, depend on every bit. A cryptographic hash
    for every pair and round would take most of a peer's computing time in a large swarm."""

    def __init__(self, run_id: RunId, key: RoundKey) -> None:
        self._run_id = run_id
        self._turn = _hashed(run_id, f"round {key.round}/{key.fragment}")

    def of(self, peers: Iterable[PeerId], me: PeerId) -> dict[PeerId, int]:
        """Return the score of each peer with `me`."""
        marks = _marks(self._run_id)
        own = self._turn ^ marks[me]
        return {peer: (own ^ marks[peer]) * MULTIPLIER & LOW_BITS for peer in peers}


class _Marks(dict[PeerId, int]):
    """Cache of the hashes of a run's peers, at most `MAX_MARKS`."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id

    def __missing__(self, peer: PeerId) -> int:
        if len(self) >= MAX_MARKS:
            self.clear()
        mark = self[peer] = _hashed(self._run_id, f"peer {peer}")
        return mark


_marks = lru_cache(maxsize=4)(_Marks)


def _hashed(run_id: RunId, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=run_id[:32]).digest(), "big")


def initiates(me: PeerId, other: PeerId, mine: Reach = Reach.DIRECT, theirs: Reach = Reach.DIRECT) -> bool:
    """Return whether `me` dials in a locked pair: the peer that is harder to call, else the one with the smaller id."""
    return me < other if mine == theirs else mine < theirs
