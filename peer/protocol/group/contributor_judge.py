"""Whether a contributor works against the rest of its group, as the owner of a shard can tell from the parts that
members sent it. The module is pure: the caller compares the parts.

The *agreement* of a contributor is the lower median of the cosines between its part and each other part. Fewer than
half of the members can move it no farther than the honest ones' cosines reach. The *usual* agreement is the lower
median of all members' agreements. Honest members that learn the same agree as usual, about, and a part with its sign
turned agrees as little as usual is much. So a round gives evidence against a contributor, the log likelihood ratio of
both cases for normal noise of standard deviation s:

    evidence = 2 * usual * (-agreement - TOLERATED * usual) / s^2

It is a number of either sign, and evidence of several rounds adds up (Page's CUSUM test, Biometrika 41, 1954). From
`ENOUGH` on a contributor is left out, and it is back when later rounds speak for it. In a single round exp(-ENOUGH)
bounds the probability that noise alone brings this about (Wald, 1945).

A part that is far longer than its sender's work explains (`LONG`) and agrees less than half as usual is left out at
once, as one with enough evidence. Such a part moves the mean the most: the owner makes it shorter, but not short.

A round in which the members have no direction in common says nothing. That is so at the end of a run, and where each
member has data of its own: there honest parts point against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from peer.protocol.messages import PeerId

FEWEST = 4
"""Among fewer parts nobody can tell which of them lies."""
TOLERATED = 0.15
"""An agreement below zero by so much of the usual one is no evidence: other data may point there."""
CLEAR = 1.0
"""The usual agreement must be so many standard deviations above zero."""
ENOUGH = 14.0
"""Evidence from which on a contributor is left out: exp(-14) is about one in a million."""
MOST = 2 * ENOUGH
"""Evidence never exceeds it, so that two clear rounds bring a contributor back."""
LONG = 4.0
"""So many times the length that its tokens explain is too long for a part that agrees less than half as usual. Honest
machines of speeds 1 to 20 stay below it (`benchmarks/honest_owners.py`)."""
TO_SIGMA = 1.4826
"""Standard deviation over the median absolute deviation, of normal values."""
REMEMBERED = 1024
"""Contributors whose evidence is kept."""


@dataclass(frozen=True, slots=True)
class PartsComparison:
    """The parts of a shard, each beside each other. Rows and columns are in the order of `peers`."""

    peers: tuple[PeerId, ...]
    cosines: Sequence[Sequence[float]]
    deviations: Sequence[Sequence[float]]
    """Standard deviations of the cosines if each product of two elements had a random sign."""
    excess: Sequence[float]
    """How many times each part is as long as the median one, and as its tokens over the median explain."""


class ContributorJudge:
    """One owner's memory of contributors, over all rounds and shards that it owned."""

    def __init__(self) -> None:
        self._evidence: dict[PeerId, float] = {}

    def judge(self, compared: PartsComparison) -> dict[PeerId, str]:
        """Learn from a round. Return the contributors to leave out, the worst first, and why, as sentences. They are
        fewer than half."""
        peers = compared.peers
        if len(peers) < FEWEST:
            return {}
        agreements = [median_low(_others(row, number)) for number, row in enumerate(compared.cosines)]
        usual = median_low(agreements)
        spread = TO_SIGMA * median_low([abs(one - usual) for one in agreements])
        noise = median_low([median_low(_others(row, number)) for number, row in enumerate(compared.deviations)])
        if usual > CLEAR * max(noise, spread) > 0:
            self._learn(compared, agreements, usual, max(noise, spread))
        guilty = [peer for peer in peers if self._evidence.get(peer, 0.0) >= ENOUGH]
        guilty.sort(key=lambda peer: -self._evidence[peer])
        found = {
            peer: (cosine, excess) for peer, cosine, excess in zip(peers, agreements, compared.excess, strict=True)
        }
        return {peer: _why(*found[peer], usual) for peer in guilty[: (len(peers) - 1) // 2]}

    def _learn(self, compared: PartsComparison, agreements: Sequence[float], usual: float, deviation: float) -> None:
        for peer, agreement, excess in zip(compared.peers, agreements, compared.excess, strict=True):
            evidence = 2 * usual * (-agreement - TOLERATED * usual) / deviation**2
            if excess > LONG and agreement < usual / 2:
                evidence = ENOUGH
            total = self._evidence.pop(peer, 0.0) + max(-ENOUGH, min(ENOUGH, evidence))
            if total > 0:
                self._evidence[peer] = min(MOST, total)
        while len(self._evidence) > REMEMBERED:
            del self._evidence[min(self._evidence, key=self._evidence.__getitem__)]


def _why(agreement: float, excess: float, usual: float) -> str:
    cosines = f"cosine {agreement:.3f}, as a rule {usual:.3f}"
    if excess > LONG and agreement < usual / 2:
        return f"its work is {excess:.3g} times as long as its tokens explain, and does not point along ({cosines})"
    return f"its work points against that of the others, now or lately ({cosines})"


def _others(row: Sequence[float], number: int) -> list[float]:
    return [value for other, value in enumerate(row) if other != number]
