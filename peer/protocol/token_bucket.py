"""Token buckets, one for each caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


MAX_TRACKED = 4096
"""Callers remembered by each limit. A caller that is pushed out starts full again: only the limits over all callers
hold one with so many addresses."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` in the long run, `burst` at once."""

    per_s: float
    burst: float


class TokenBuckets(Generic[K]):
    """A token bucket for each caller."""

    def __init__(self, rate: Rate, limit: int = MAX_TRACKED) -> None:
        self._rate = rate
        self._limit = limit
        self._levels: OrderedDict[K, tuple[float, float]] = OrderedDict()

    def take(self, who: K, now: float, amount: float = 1.0, rate: Rate | None = None) -> float:
        """Take `amount` and return 0. If there is too little, take nothing and return the seconds until there is
        enough. More than a burst is granted from a full bucket, which then owes it."""
        rate = rate or self._rate
        level = self._level(who, now, rate)
        short = min(amount, rate.burst) - level
        self._keep(who, level if short > 0 else level - amount, now)
        return short / rate.per_s if short > 0 else 0.0

    def charge(self, who: K, now: float, amount: float) -> None:
        """Take without asking, down to an empty bucket."""
        self._keep(who, max(0.0, self._level(who, now, self._rate) - amount), now)

    def __len__(self) -> int:
        return len(self._levels)

    def _level(self, who: K, now: float, rate: Rate) -> float:
        level, at = self._levels.get(who, (rate.burst, now))
        return min(rate.burst, level + max(0.0, now - at) * rate.per_s)

    def _keep(self, who: K, level: float, now: float) -> None:
        self._levels[who] = (level, now)
        self._levels.move_to_end(who)
        while len(self._levels) > self._limit:
            self._levels.popitem(last=False)
