"""When round 0 began, as the operator's node settles it."""

from __future__ import annotations

from peer.node.open import OpenNode
from peer.protocol.messages import Status
from peer.run.home import write_whole

START_DELAY_S = 4.0
"""Between the last peer's being ready and round 0: by then all have read it in the directory."""


class StartTime:
    """When round 0 began: the manifest's word, else when enough peers were first ready; kept over restarts."""

    def __init__(self, node: OpenNode, from_manifest: float, min_peers: int) -> None:
        self._node = node
        self._kept = node.local.folder.path / "run_start"
        self._min_peers = min_peers
        self.value = from_manifest or self._load()

    def _load(self) -> float:
        try:
            return float(self._kept.read_text())
        except (OSError, ValueError):
            return 0.0

    async def settle(self) -> bool:
        """Look once; True when the start is known."""
        if not self.value:
            records = await self._node.directory.peers()
            if sum(record.status is Status.TRAINING for record in records.values()) >= self._min_peers:
                self.value = self._node.local.clock.now() + START_DELAY_S
                write_whole(self._kept, repr(self.value).encode())
        return bool(self.value)
