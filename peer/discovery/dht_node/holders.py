"""The nodes of the DHT that took an entry under a key: they hold what others announce there, too.

The way to a key is a search, which asks many nodes and gets all that lies under the key from several of them. Nodes
around a key change seldom. So a peer searches now and then, and when it hears of a nearer node that the last search did
not meet. In between it talks to those that took its entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)

SEARCH_EVERY_S = 3600.0
"""Seconds after which a key is searched again although all of its holders answer."""
MAX_KEYS = 64


@dataclass(frozen=True, slots=True)
class _Search(Generic[N]):
    until: float
    took: list[N]
    met: frozenset[N]


class Holders(Generic[N]):
    """The holders of each key, until one of them fails. `now`: seconds, of any origin."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[bytes, _Search[N]] = {}

    def searched(self, key: bytes, took: Sequence[N], met: Collection[N]) -> None:
        """A search has just ended: these nodes near the key were met, and some of them took our entry."""
        self._of.pop(key, None)
        self._of[key] = _Search(self._now() + SEARCH_EVERY_S, list(took), frozenset(met))
        while len(self._of) > MAX_KEYS:
            del self._of[next(iter(self._of))]

    def of(self, key: bytes, nearest: Collection[N] = ()) -> list[N]:
        """Return the holders of a key; none: it has to be searched. `nearest`: the nodes nearest to it that we know."""
        last = self._of.get(key)
        fresh = last is not None and self._now() < last.until and last.met.issuperset(nearest)
        return list(last.took) if last is not None and fresh else []

    def lost(self, key: bytes) -> None:
        """A holder of this key has failed."""
        self._of.pop(key, None)
