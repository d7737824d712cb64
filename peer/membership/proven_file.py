"""The file that keeps the proven peers across restarts (`peer.protocol.pair.proven`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.errors import HomeUnusable
from peer.observe import events
from peer.ports.clock import Clock
from peer.protocol.pair.proven import MAX_BYTES, ProvenPeers, unpack
from peer.run.home import write_whole

KEEP_EVERY_S = 30.0
"""Seconds between two writes. A crash loses what was learned since the last one."""


class ProvenFile:
    """The proven peers in one small file, which is replaced atomically. A failure to write is journaled, and training
    continues."""

    def __init__(self, path: Path, emit: Callable[[events.Event], None]) -> None:
        """Read the file. If it cannot be read, no peer is proven."""
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
                self._save()
        finally:
            self._save()

    def _save(self) -> None:
        """Write the file if there are changes. At most 600 KB to the page cache, which takes a few milliseconds."""
        if (raw := self.peers.pack_if_changed()) is None:
            return
        try:
            write_whole(self._path, raw)
        except HomeUnusable as error:
            self._emit(events.CheckpointFailed(reason=f"the memory of proven peers was not kept: {error.found}"))
