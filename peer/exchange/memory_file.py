"""Small files in which an exchange stores what it has learned, for the time after a restart of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.errors import HomeUnusable
from peer.observe import events
from peer.run.home import write_whole

MAX_BYTES = 4 * 2**20
"""Largest file that is read, in bytes."""


class MemoryFile:
    """A `MemoryStore` in one small file, which is replaced atomically. A failure to write is journaled, and training
    continues."""

    def __init__(self, path: Path, what: str, emit: Callable[[events.Event], None]) -> None:
        """`what`: name of the content in the plural, for messages."""
        self._path = path
        self._what = what
        self._emit = emit

    def read(self) -> bytes:
        """Return the content; empty if there is no file or it cannot be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError:
            return b""

    def write(self, raw: bytes) -> None:
        """Replace the content. Blocks until the file is written. Never raises: a disk error is journaled."""
        try:
            write_whole(self._path, raw)
        except HomeUnusable as error:
            self._emit(events.CheckpointFailed(reason=f"{self._what} were not kept: {error.found}"))
