"""The files in which what an exchange must not forget outlives a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.errors import HomeUnusable
from peer.observe import events
from peer.run.home import write_whole

MAX_BYTES = 4 * 2**20
"""Of a file that is read."""


class MemoryFile:
    """A `MemoryStore`: one small file, written whole or not at all. A failure to write is journaled, and training
    continues."""

    def __init__(self, path: Path, what: str, emit: Callable[[events.Event], None]) -> None:
        """`what`: its content in the plural, for a person."""
        self._path = path
        self._what = what
        self._emit = emit

    def read(self) -> bytes:
        """Return the content. Empty when there is nothing, or nothing that can be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError:
            return b""

    def keep(self, raw: bytes) -> None:
        """Write. Blocks for a disk's moment, and never raises for a disk."""
        try:
            write_whole(self._path, raw)
        except HomeUnusable as error:
            self._emit(events.CheckpointFailed(reason=f"{self._what} were not kept: {error.found}"))
