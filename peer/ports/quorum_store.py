"""The memory of a group's rosters that outlives the process."""

from __future__ import annotations

from typing import Protocol


class QuorumStore(Protocol):
    """Keeps the rosters that a member of a group must not forget."""

    def read(self) -> bytes:
        """The rosters kept last; empty when there are none, or none that can be read."""

    def keep(self, raw: bytes) -> None:
        """Keep these in place of the former. Called in a worker thread, before a contribution goes out."""


class NoQuorumStore:
    """A `QuorumStore` that forgets."""

    def read(self) -> bytes:
        return b""

    def keep(self, raw: bytes) -> None: ...
