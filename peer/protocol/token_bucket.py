"""Rate limits: one token bucket for each caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


MAX_TRACKED = 4096
"""Callers that each limit remembers. A caller that is evicted starts with a full bucket again, so a caller with that
many addresses is limited only by the limits over all callers."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate limit: `per_s` on average over a long time, with bursts of up to `burst`."""

    per_s: float
    burst: float


class TokenBuckets(Generic[K]):
    """A token bucket for each caller. The caller passes `now`, seconds of any one clock."""

    def __init__(self, rate: Rate, limit: int = MAX_TRACKED) -> None:
        self._rate = rate
        self._limit = limit
        self._levels: OrderedDict[K, tuple[float, float]] = OrderedDict()

    def take(self, who: K, now: float, amount: float = 1.0, rate: Rate | None = None) -> float:
        """Take `amount` and return 0. If the bucket has too little, take nothing and return the seconds until it has
        enough. An `amount` above the burst is granted from a full bucket, which then goes below zero."""
        rate = rate or self._rate
        wait_s = self.lacks_s(who, now, amount, rate)
        self._keep(who, self._level(who, now, rate) - (0.0 if wait_s > 0 else amount), now)
        return wait_s

    def lacks_s(self, who: K, now: float, amount: float, rate: Rate | None = None) -> float:
        """Return the seconds until `amount` can be taken, without taking it."""
        rate = rate or self._rate
        return max(0.0, min(amount, rate.burst) - self._level(who, now, rate)) / rate.per_s

    def wait_s(self, who: K, now: float) -> float:
        """Return the seconds until one token can be taken, without taking it. 0: now."""
        return max(0.0, 1.0 - self._level(who, now, self._rate)) / self._rate.per_s

    def give_back(self, who: K, now: float) -> None:
        """Return one token that was taken."""
        self._keep(who, min(self._rate.burst, self._level(who, now, self._rate) + 1.0), now)

    def charge(self, who: K, now: float, amount: float, rate: Rate | None = None) -> None:
        """Take `amount` in any case, down to an empty bucket."""
        self._keep(who, max(0.0, self._level(who, now, rate or self._rate) - amount), now)

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
