"""Interface of the store for exchange state that has to survive a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class MemoryStore(Protocol):
    """Stores one value that has to survive a restart: a group's rosters, or the distances to partners of pairs."""

    def read(self) -> bytes:
        """Return the value that was stored last; empty if there is none or it cannot be read."""

    def write(self, raw: bytes) -> None:
        """Replace the stored value. Called in a worker thread. In groups, a contribution is sent only after this call
        has returned."""


class NoMemoryStore:
    """A `MemoryStore` that stores nothing."""

    def read(self) -> bytes:
        return b""

    def write(self, raw: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeStores:
    """The stores of all exchange state that survives a restart."""

    quorums: MemoryStore = field(default_factory=NoMemoryStore)
    """Rosters of a group."""
    partners: MemoryStore = field(default_factory=NoMemoryStore)
    """Distances to the partners of pairs (`peer.protocol.pair.clip.ClipMemory`)."""
