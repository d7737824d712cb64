"""The file in which the memory of proven peers outlives a restart (`peer.protocol.pair.proven`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.errors import HomeUnusable
from peer.observe import events
from peer.ports.clock import Clock
from peer.protocol.pair.proven import MAX_BYTES, ProvenPeers, unpack
from peer.run.home import write_whole

KEEP_EVERY_S = 30.0
"""A crash costs what was learned in this time."""


class ProvenFile:
    """One small file, written whole or not at all. A failure to write is journaled, and training continues."""

    def __init__(self, path: Path, emit: Callable[[events.Event], None]) -> None:
        """Read what was kept. A file that cannot be read counts as none: its peers are strangers again."""
        self._path = path
        self._emit = emit
        self.peers = self._read()

    def _read(self) -> ProvenPeers:
        try:
            with self._path.open("rb") as file:
                return unpack(file.read(MAX_BYTES + 1))
        except FileNotFoundError:
            return ProvenPeers()
        except (OSError, ValueError) as error:
            self._emit(events.CheckpointFailed(reason=f"the memory of proven peers cannot be read: {error}"))
            return ProvenPeers()

    async def run(self, clock: Clock) -> None:
        """Write changes to disk every `KEEP_EVERY_S`, and once more on cancellation. Runs until it is cancelled."""
        try:
            while True:
                await clock.sleep(KEEP_EVERY_S)
                self._keep()
        finally:
            self._keep()

    def _keep(self) -> None:
        """Write at most 600 KB to the page cache: a few milliseconds."""
        if (raw := self.peers.take_news()) is None:
            return
        try:
            write_whole(self._path, raw)
        except HomeUnusable as error:
            self._emit(events.CheckpointFailed(reason=f"the memory of proven peers was not kept: {error.found}"))
