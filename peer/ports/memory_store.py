"""The memory of exchanges that outlives the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class MemoryStore(Protocol):
    """Keeps what a peer must not forget of its exchanges: a group's rosters, or how far partners of pairs were."""

    def read(self) -> bytes:
        """Return what was kept last; empty when there is nothing, or nothing that can be read."""

    def keep(self, raw: bytes) -> None:
        """Keep this in place of the former. Called in a worker thread, in groups before a contribution goes out."""


class NoMemoryStore:
    """A `MemoryStore` that forgets."""

    def read(self) -> bytes:
        return b""

    def keep(self, raw: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeStores:
    """All that exchanges keep over a restart."""

    quorums: MemoryStore = field(default_factory=NoMemoryStore)
    """A group's rosters."""
    partners: MemoryStore = field(default_factory=NoMemoryStore)
    """Of pairs: how far partners were."""
