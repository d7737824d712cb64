"""Remembers which DHT nodes accepted an entry under a key, since they hold the entries of others under that key too.

Reaching a key takes a search, which asks many nodes and gets all entries of the key from several of them. The nodes
around a key change rarely. A peer therefore searches from time to time, and when it learns of a nearer node that the
last search did not meet. In between it calls only the nodes that accepted its entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)

SEARCH_EVERY_S = 3600.0
"""Seconds after which a key is searched again even if all its holders answer."""
MAX_KEYS = 64


@dataclass(frozen=True, slots=True)
class _Search(Generic[N]):
    until: float
    took: list[N]
    met: frozenset[N]


class Holders(Generic[N]):
    """The holders of each key, until one of them fails. `now`: returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[bytes, _Search[N]] = {}

    def searched(self, key: bytes, took: Sequence[N], met: Collection[N]) -> None:
        """Record the result of a search: the nodes near the key that it met, and those that accepted our entry."""
        self._of.pop(key, None)
        self._of[key] = _Search(self._now() + SEARCH_EVERY_S, list(took), frozenset(met))
        while len(self._of) > MAX_KEYS:
            del self._of[next(iter(self._of))]

    def of(self, key: bytes, nearest: Collection[N] = ()) -> list[N]:
        """Return the holders of a key; empty: search for the key. `nearest`: the known nodes nearest to the key. If the
        last search did not meet one of them, it counts as outdated."""
        last = self._of.get(key)
        fresh = last is not None and self._now() < last.until and last.met.issuperset(nearest)
        return list(last.took) if last is not None and fresh else []

    def lost(self, key: bytes) -> None:
        """Forget the holders of a key, because one of them has failed."""
        self._of.pop(key, None)
