"""Reputation of peers by their offences. Each offence adds to a score that halves every few minutes. While the score is
above `OUT_OF_FAVOUR`, the peer is no candidate, and its calls are refused. The module is pure: `now` is an argument, in
seconds.

Only peers that proved their key have scores: a peer must not be blamed because a third peer named its id. A peer
excluded in this way can return with a fresh key. The limits on Hellos slow that down, and a new key has no record in
the directory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from peer.codes import Code
from peer.protocol.messages import PeerId

OUT_OF_FAVOUR = 4.0
"""Score above which a peer is excluded: it is no candidate, and its calls are refused."""
HALF_LIFE_S = 300.0
"""Seconds in which a score halves."""
CEILING = 64.0
"""Maximum score. So no peer is excluded for longer than HALF_LIFE_S * log2(CEILING / OUT_OF_FAVOUR) = 20 minutes."""
MAX_PEERS = 1024
FORGOTTEN = 0.05
"""When there is no room for another peer, scores up to this are removed."""

WRONG_BYTES = 6.0
"""Weight of offences not in `WEIGHTS`. A single one excludes the peer for three minutes. TLS detects errors of the
line, so the peer itself has sent the wrong bytes."""
WEIGHTS: Mapping[Code, float] = {
    Code.LOST: 1.0,  # a crash, a closed laptop or a bad line: only the fifth within minutes is too many
    Code.LATE: 2.0,  # locked and did not begin: slow or asleep, but each time our trainer waits for it
    Code.SILENT: 4.5,  # stopped in the middle of a payload: on purpose, or the line will not work for a minute
    Code.TIMEOUT: 0.75,
    Code.LIMIT: 0.1,
    Code.LAYOUT: 2.0,  # most likely a wrong manifest or an old program: three tries, then it has to wait
    Code.WRONG_RUN: 2.0,
    Code.FALSE_MEAN: CEILING,  # proved by its own signatures: excluded for the maximum time
    Code.RECORD: 3.0,
    Code.REQUEST: 3.0,
    Code.VERDICT: 3.0,
}
"""Weights by code. Any other code means that bytes are not what they claim to be, and has weight `WRONG_BYTES`."""


def weight(code: Code) -> float:
    """Return what an offence of this code adds to a score."""
    return WEIGHTS.get(code, WRONG_BYTES)


@dataclass(frozen=True, slots=True)
class _Score:
    value: float
    at: float

    def now(self, now: float) -> float:
        """Return the decayed score. If the clock was set back, the score does not grow."""
        return self.value * math.exp2(-max(0.0, now - self.at) / HALF_LIFE_S)


class ReputationScore:
    """Scores of the peers that offended. The number is bounded: a flood of keys evicts the smallest scores first."""

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
        """Return the score of a peer; 0 for a peer without offences."""
        known = self._scores.get(peer)
        return 0.0 if known is None else known.now(now)

    def out_for_s(self, peer: PeerId, now: float) -> float:
        """Return the seconds until the peer is a candidate again. 0: it is one now."""
        score = self.score(peer, now)
        return HALF_LIFE_S * math.log2(score / OUT_OF_FAVOUR) if score > OUT_OF_FAVOUR else 0.0

    def out_of_favour(self, now: float) -> dict[PeerId, float]:
        """Return the excluded peers, with the seconds left, longest first."""
        left = {peer: self.out_for_s(peer, now) for peer in self._scores}
        return dict(sorted(((p, s) for p, s in left.items() if s > 0), key=lambda item: -item[1]))

    def __len__(self) -> int:
        return len(self._scores)

    def _make_room(self, now: float) -> None:
        current = {peer: score.now(now) for peer, score in self._scores.items()}
        self._scores = {peer: self._scores[peer] for peer, value in current.items() if value > FORGOTTEN}
        if len(self._scores) > self._limit:
            del self._scores[min(self._scores, key=lambda peer: current[peer])]
