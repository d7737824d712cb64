"""How far the run has come, as the operator's node has seen: kept over restarts, so that its first state is not taken
for the current one when it is the only node that a newcomer meets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from peer.join.donors import FIRST_ROUNDS, live_round
from peer.protocol.messages import MAX_ROUND, PeerRecord
from peer.run.home import write_whole


class RunProgress:
    """The furthest round seen; of many peers their lower median, so that one alone cannot claim much. `kept`: a file
    of ours."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self.value = self._load()

    def _load(self) -> int:
        try:
            return min(max(0, int(self._kept.read_text())), MAX_ROUND)
        except (OSError, ValueError):
            return 0

    def learn(self, records: Iterable[PeerRecord]) -> None:
        """Those in the directory now. Raises HomeUnusable when it cannot be kept."""
        seen = min(live_round(records) or 0, MAX_ROUND)
        if seen > self.value:
            self.value = seen
            write_whole(self._kept, str(seen).encode())

    def why_not_first(self) -> str:
        """Why nobody should begin with the first state, for a person; empty: they may."""
        if self.value <= FIRST_ROUNDS:
            return ""
        first = "this node has only the first state"
        return f"{first}, and the run has come to round {self.value}: wait for a peer that trains"
