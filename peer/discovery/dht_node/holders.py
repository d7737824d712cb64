"""The nodes of the DHT that took an entry under a key: they hold what others announce there, too.

The way to a key is a search, which asks many nodes and gets all that lies under the key from several of them. Nodes
around a key change seldom. So a peer searches now and then, and in between it talks to those that took its entry."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

N = TypeVar("N")

SEARCH_EVERY_S = 600.0
"""Seconds after which a key is searched again although all of its holders answer."""
MAX_KEYS = 64


class Holders(Generic[N]):
    """The holders of each key, until one of them fails. `now`: seconds, of any origin."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[bytes, tuple[float, list[N]]] = {}

    def took(self, key: bytes, nodes: Sequence[N]) -> None:
        """A search has just ended at these. None of them: there is nobody else."""
        self._of.pop(key, None)
        self._of[key] = (self._now() + SEARCH_EVERY_S, list(nodes))
        while len(self._of) > MAX_KEYS:
            del self._of[next(iter(self._of))]

    def of(self, key: bytes) -> list[N]:
        """Return the holders of a key; none: it has to be searched."""
        until, nodes = self._of.get(key, (0.0, []))
        return list(nodes) if self._now() < until else []

    def one_of(self, key: bytes) -> N | None:
        """Return any holder of a key. None: it has to be searched."""
        nodes = self.of(key)
        return random.choice(nodes) if nodes else None

    def lost(self, key: bytes) -> None:
        """A holder of this key has failed."""
        self._of.pop(key, None)
