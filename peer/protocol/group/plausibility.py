"""Check, with what a single member knows, whether the result of a shard can be the mean of the contributions. The
module is pure: the caller measures lengths and cosines.

An owner signs its result, and no other member sees all contributions. A member knows its own contribution, the results
of the other shards of the round, and the results that it applied before. Most owners are honest, so medians over these
show how long results usually are, and how much they agree with our contribution.

* Length: a result is at most `FAR` times as long as the larger of our own contribution and the usual result.
* Direction: a result that includes our contribution must not point against it while the other results agree with it.

A correct mean may point against a small contribution if the other members have different data or much faster machines.
So the direction counts only for a member whose contribution usually agrees with the results (`ALONG`), and only if the
disagreement is clear (`AGAINST`).

A refusal does not prove a fault of the owner, so its reputation does not change. The result is not applied, as if the
owner had died."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

KEPT = 8
"""Latest rounds of a fragment whose results define what is usual."""
FEWEST = 3
"""Minimum number of values that define what is usual."""
FEW = 3
"""With up to this many contributors, neither length nor direction counts: the mean may be mostly the contribution of
one fast machine."""
FAR = 2.5
"""Factor by which a result may be longer than usual."""
ALONG = 0.15
"""Minimum usual cosine between our contribution and the results for the direction to count."""
AGAINST = 0.5
"""A result points against our contribution if its cosine is below minus this fraction of the usual one."""
DEVIATIONS = 4.0
"""The cosine must also be below zero by this many standard deviations of the cosine between random directions, which is
1 / sqrt(elements)."""


@dataclass(frozen=True, slots=True)
class MeasuredResult:
    """A shard's result compared with our own contribution to it."""

    rms: float
    """Root mean square of the elements of the result."""
    own_rms: float
    """Root mean square of our contribution."""
    cosine: float
    """Cosine between the two. 0 if either is zero."""
    elements: int
    """Number of elements."""
    named: int = 0
    """Number of contributors that the result names."""
    names_us: bool = False


class ResultHistory:
    """The results of one fragment that this member applied."""

    def __init__(self) -> None:
        self._lengths: deque[float] = deque(maxlen=KEPT)
        self._cosines: deque[float] = deque(maxlen=KEPT)

    @property
    def last_rms(self) -> float | None:
        """Median over the shards of the root mean square of the last round's results. None: no results yet."""
        return self._lengths[-1] if self._lengths else None

    def doubts(self, results: Mapping[int, MeasuredResult], members: int) -> dict[int, str]:
        """Return the shards whose result cannot be a correct mean, with the reason as a sentence. `results`: those of
        the shards that other members own. `members`: number of members in the roster."""
        found = dict[int, str]()
        for shard, one in results.items():
            others = [other for number, other in results.items() if number != shard]
            if why := _too_few(one, members) or self._too_long(one, others) or self._against_us(one, others):
                found[shard] = why
        return found

    def applied(self, results: Sequence[MeasuredResult]) -> None:
        """Record the results of a round that are applied."""
        if results:
            self._lengths.append(median_low([one.rms for one in results]))
        if cosines := [one.cosine for one in results if one.names_us]:
            self._cosines.append(median_low(cosines))

    def _too_long(self, one: MeasuredResult, others: Sequence[MeasuredResult]) -> str:
        lengths = [*self._lengths, *(other.rms for other in others)]
        if one.named <= FEW or len(lengths) < FEWEST:
            return ""
        usual = max(one.own_rms, median_low(lengths))
        if one.rms <= FAR * usual:
            return ""
        return f"the result is {one.rms / usual if usual else one.rms:.3g} times as long as usual"

    def _against_us(self, one: MeasuredResult, others: Sequence[MeasuredResult]) -> str:
        cosines = [*self._cosines, *(other.cosine for other in others if other.names_us)]
        if not one.names_us or one.named <= FEW or len(cosines) < FEWEST:
            return ""
        usual = median_low(cosines)
        if usual <= ALONG or one.cosine >= -max(AGAINST * usual, DEVIATIONS / math.sqrt(one.elements)):
            return ""
        return f"the result points against our part (cosine {one.cosine:.2f}, as a rule {usual:.2f})"


def _too_few(one: MeasuredResult, members: int) -> str:
    """Return a sentence if the result names too few contributors; empty: enough. An honest owner waits for more than
    half of the roster."""
    if 2 * one.named > members:
        return ""
    return f"the result names {one.named} of {members} members, too few for a result"
