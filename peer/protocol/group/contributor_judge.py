"""Detection of members that work against their group, from the contributions that the owner of a shard received. The
module is pure: the caller computes the cosines.

The *agreement* of a contributor is the lower median of the cosines between its contribution and each other one. Fewer
than half of the members cannot move it beyond the range of the honest members' cosines. The *usual* agreement is the
lower median of all agreements. Honest members that learn the same agree about as much as usual, and a contribution with
its sign reversed has about the negative of the usual agreement. So each round gives evidence against a contributor: the
log likelihood ratio of these two cases, for normal noise of standard deviation s:

    evidence = 2 * usual * (-agreement - TOLERATED * usual) / s^2

The evidence has either sign and is summed over rounds (Page's CUSUM test, Biometrika 41, 1954). From `ENOUGH` on, the
contributor is left out; later rounds with negative evidence bring it back. In a single round, the probability that
noise alone gives this much evidence is at most exp(-ENOUGH) (Wald, 1945).

A contribution that is much longer than its tokens explain (`LONG`) and agrees less than half as much as usual is left
out at once. Such a contribution moves the mean the most, although the owner scales it down.

A round in which the contributions have no common direction gives no evidence. This happens at the end of a run, and
where each member has different data: honest contributions may then point against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from peer.protocol.messages import PeerId

FEWEST = 4
"""Minimum number of contributions. Among fewer, it cannot be decided which of them is false."""
TOLERATED = 0.15
"""A negative agreement up to this fraction of the usual one is no evidence: members with other data may have it."""
CLEAR = 1.0
"""The usual agreement must exceed zero by this many standard deviations."""
ENOUGH = 14.0
"""Evidence from which on a contributor is left out: exp(-14) is about one in a million."""
MOST = 2 * ENOUGH
"""Maximum evidence, so that two clear rounds bring a contributor back."""
LONG = 4.0
"""A contribution is left out at once if it is this many times as long as its tokens explain and agrees less than half
as much as usual. Honest machines of speeds 1 to 20 stay below (`benchmarks/honest_owners.py`)."""
TO_SIGMA = 1.4826
"""Ratio of standard deviation to median absolute deviation for normal values."""
REMEMBERED = 1024
"""Maximum contributors whose evidence is remembered."""


@dataclass(frozen=True, slots=True)
class PartsComparison:
    """Pairwise comparison of the contributions to a shard. Rows and columns are in the order of `peers`."""

    peers: tuple[PeerId, ...]
    cosines: Sequence[Sequence[float]]
    deviations: Sequence[Sequence[float]]
    """Standard deviations of the cosines under the hypothesis that each product of two elements has a random sign."""
    excess: Sequence[float]
    """Length of each contribution relative to the median length, divided by its tokens relative to the median
    tokens."""


class ContributorJudge:
    """Evidence of one owner against contributors, over all rounds and shards that it owned."""

    def __init__(self) -> None:
        self._evidence: dict[PeerId, float] = {}

    def judge(self, compared: PartsComparison) -> dict[PeerId, str]:
        """Add the evidence of a round. Return the contributors to leave out, worst first, with the reason as a
        sentence. They are always fewer than half."""
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
