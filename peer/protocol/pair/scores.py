"""What every peer can compute of a pair: its score, which is the weight of its edge, and which of the two dials."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from peer.protocol.messages import PeerId, Reach, RoundKey, RunId

MULTIPLIER = 0x9E3779B97F4A7C15
"""The golden ratio in 64 bits, an odd number (Knuth, vol. 3, 6.4)."""
LOW_BITS = 2**64 - 1
MAX_MARKS = 16384
"""Most peers of a run whose hashes are kept. A peer that has seen more computes the hashes again."""


def score(run_id: RunId, key: RoundKey, one: PeerId, other: PeerId) -> int:
    """Return the weight of a pair in a round, 64 bits, the same on every peer. The hash is keyed by the run, so that
    nobody can prepare ids for a run that is not written yet."""
    return RoundScores(run_id, key).of([one], other)[one]


class RoundScores:
    """The scores of one (round, fragment).

    One keyed hash is made of each peer and one of the round. A pair's score is a multiplicative hash of all three
    (Dietzfelbinger et al. 1997): its high bits, which rank, depend on every bit. A hash for every pair in every round
    would be most of a peer's computing in a large swarm."""

    def __init__(self, run_id: RunId, key: RoundKey) -> None:
        self._run_id = run_id
        self._turn = _hashed(run_id, f"round {key.round}/{key.fragment}")

    def of(self, peers: Iterable[PeerId], me: PeerId) -> dict[PeerId, int]:
        """Return the score of each peer with this one."""
        marks = _marks(self._run_id)
        own = self._turn ^ marks[me]
        return {peer: (own ^ marks[peer]) * MULTIPLIER & LOW_BITS for peer in peers}


class _Marks(dict[PeerId, int]):
    """Hashes of the peers of a run, at most `MAX_MARKS`."""

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
    """Whether `me` dials: the one of a locked pair that is harder to call, else the one with the smaller id."""
    return me < other if mine == theirs else mine < theirs
