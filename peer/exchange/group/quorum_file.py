"""The file in which a group's rosters outlive a restart (`peer.protocol.group.quorum_codec`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.errors import HomeUnusable
from peer.observe import events
from peer.protocol.group.quorum_codec import MAX_BYTES
from peer.run.home import write_whole


class QuorumFile:
    """One small file, written whole or not at all. A failure to write is journaled, and training continues."""

    def __init__(self, path: Path, emit: Callable[[events.Event], None]) -> None:
        self._path = path
        self._emit = emit

    def read(self) -> bytes:
        """Empty when there is nothing, or nothing that can be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError:
            return b""

    def keep(self, raw: bytes) -> None:
        """Blocks for a disk's moment. Never raises for a disk."""
        try:
            write_whole(self._path, raw)
        except HomeUnusable as error:
            self._emit(events.CheckpointFailed(reason=f"the group's rosters were not kept: {error.found}"))
