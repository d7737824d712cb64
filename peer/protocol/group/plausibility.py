"""Whether a shard's result can be the mean of what the members sent, as far as one member can tell from its own part.
The module is pure: the caller measures.

An owner signs its result, and nobody else sees all the parts. A member knows three things: its own part, the results
of the other shards in the same round, and what it applied before. Most owners are honest, so medians of the latter two
tell how long a result is as a rule, and how much it points where our part does.

* *Length*: at most `FAR` times the larger of our own part and the usual length.
* *Direction*: a result that names us may not point against our part, where the others point along with it.

The mean of members with other data, or with far faster machines, may well point against a small part. So the direction
only counts for a member whose part usually lies along the result (`ALONG`), and only when it is clear (`AGAINST`).

A doubt is no proof. The result is not applied, as if its owner had died, and nobody's standing falls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

KEPT = 8
"""Rounds of a fragment whose applied results tell what is usual."""
FEWEST = 3
"""So many values tell what is usual, at least."""
FEW = 3
"""Among so few contributors the mean may be the fastest machine's part alone: neither length nor direction tells."""
FAR = 2.5
ALONG = 0.15
"""Cosine between our part and the results, as a rule, from which on the direction counts."""
AGAINST = 0.5
"""A result points against our part if its cosine is below minus so many times the usual one."""
DEVIATIONS = 4.0
"""A cosine must be below zero by so many of its standard deviations between random directions: 1 / sqrt(elements)."""


@dataclass(frozen=True, slots=True)
class MeasuredResult:
    """A shard's result beside our own part of it."""

    rms: float
    """Root mean square of its elements."""
    own_rms: float
    """That of our part."""
    cosine: float
    """Between the two. 0 where either is zero."""
    elements: int
    """How many they have."""
    named: int = 0
    """How many contributors it names."""
    names_us: bool = False


class ResultHistory:
    """One fragment's applied results, as one member saw them."""

    def __init__(self) -> None:
        self._lengths: deque[float] = deque(maxlen=KEPT)
        self._cosines: deque[float] = deque(maxlen=KEPT)

    @property
    def last_rms(self) -> float | None:
        """Root mean square of the results of the last round, the median of the shards. None: there was none."""
        return self._lengths[-1] if self._lengths else None

    def doubts(self, results: Mapping[int, MeasuredResult], members: int) -> dict[int, str]:
        """Return why results of a round cannot be means, by shard, as sentences. `results`: of the shards whose owner
        is another one. `members`: in the roster."""
        found = dict[int, str]()
        for shard, one in results.items():
            others = [other for number, other in results.items() if number != shard]
            if why := _too_few(one, members) or self._too_long(one, others) or self._against_us(one, others):
                found[shard] = why
        return found

    def applied(self, results: Sequence[MeasuredResult]) -> None:
        """Note the results of a round that will be applied."""
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
    """An honest owner makes no result without more than half of the roster."""
    if 2 * one.named > members:
        return ""
    return f"the result names {one.named} of {members} members, too few for a result"
