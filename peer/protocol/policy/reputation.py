"""The reputation of a peer, by its offences. Each offence adds to a score that halves every few minutes. From
`OUT_OF_FAVOUR` on the peer is no candidate, and reads `standing` until the score has fallen below. The module is pure:
`now` is an argument, in seconds.

Scores are only for peers that proved their key. An id that a third peer merely names must never be blamed. A peer that
is out can come back with a fresh key. The limits on Hellos slow that down, and a new key begins without a record in the
directory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from peer.codes import Code
from peer.protocol.messages import PeerId

OUT_OF_FAVOUR = 4.0
"""Score from which on a peer is no candidate."""
HALF_LIFE_S = 300.0
"""Seconds in which a score halves."""
CEILING = 64.0
"""No score goes beyond it: nobody is out for longer than HALF_LIFE_S * log2(CEILING / OUT_OF_FAVOUR) = 20 minutes."""
MAX_PEERS = 1024
FORGOTTEN = 0.05
"""A score this low is as good as none."""

WRONG_BYTES = 6.0
"""One is enough. TLS keeps line noise out, so wrong bytes were sent: three minutes out, then longer."""
WEIGHTS: Mapping[Code, float] = {
    Code.LOST: 1.0,  # a crash, a closed laptop or a bad line is no crime: only the fifth within minutes is too many
    Code.LATE: 2.0,  # was locked and did not begin: slow or asleep, but each time our trainer waits for it
    Code.SILENT: 4.5,  # stopped in the middle of a payload: somebody holds us up, or the line is of no use for a minute
    Code.TIMEOUT: 0.75,
    Code.LIMIT: 0.1,
    Code.LAYOUT: 2.0,  # most likely a wrong manifest or an old program: three tries, then it is asked to wait
    Code.WRONG_RUN: 2.0,
    Code.FALSE_MEAN: CEILING,  # proved by its own signatures: out for as long as anybody can be
    Code.RECORD: 3.0,
    Code.REQUEST: 3.0,
    Code.VERDICT: 3.0,
}
"""Weights by code. Any other code names bytes that are not what they claim to be and costs WRONG_BYTES."""


def weight(code: Code) -> float:
    """Return what an offence of this code adds to a score."""
    return WEIGHTS.get(code, WRONG_BYTES)


@dataclass(frozen=True, slots=True)
class _Score:
    value: float
    at: float

    def now(self, now: float) -> float:
        """Decayed. A clock that was set back makes nothing grow."""
        return self.value * math.exp2(-max(0.0, now - self.at) / HALF_LIFE_S)


class ReputationScore:
    """Scores of the peers that offended. Bounded: a flood of keys pushes out the smallest scores first."""

    def __init__(self, limit: int = MAX_PEERS) -> None:
        self._limit = limit
        self._scores: dict[PeerId, _Score] = {}

    def offend(self, peer: PeerId, code: Code, now: float) -> float:
        """Add an offence and return the score."""
        score = min(CEILING, self.score(peer, now) + weight(code))
        self._scores[peer] = _Score(score, now)
        if len(self._scores) > self._limit:
            self._make_room(now)
        return score

    def score(self, peer: PeerId, now: float) -> float:
        """0 for a peer nothing is known of."""
        known = self._scores.get(peer)
        return 0.0 if known is None else known.now(now)

    def out_for_s(self, peer: PeerId, now: float) -> float:
        """Return the seconds until the peer is in favour again. 0: it is."""
        score = self.score(peer, now)
        return HALF_LIFE_S * math.log2(score / OUT_OF_FAVOUR) if score > OUT_OF_FAVOUR else 0.0

    def out_of_favour(self, now: float) -> dict[PeerId, float]:
        """Return the peers that are out and the seconds left, the longest first."""
        left = {peer: self.out_for_s(peer, now) for peer in self._scores}
        return dict(sorted(((p, s) for p, s in left.items() if s > 0), key=lambda item: -item[1]))

    def __len__(self) -> int:
        return len(self._scores)

    def _make_room(self, now: float) -> None:
        current = {peer: score.now(now) for peer, score in self._scores.items()}
        self._scores = {peer: self._scores[peer] for peer, value in current.items() if value > FORGOTTEN}
        if len(self._scores) > self._limit:
            del self._scores[min(self._scores, key=lambda peer: current[peer])]
