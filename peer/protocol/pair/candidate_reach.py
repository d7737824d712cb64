"""How each candidate of a round can be called. The module is pure."""

from __future__ import annotations

from peer.protocol.messages import PeerId, Reach


class CandidateReach:
    """The reach of each candidate, from the directory or from its latest offer. Candidates without an entry can be
    dialled."""

    def __init__(self) -> None:
        self.callers: set[PeerId] = set()
        """Candidates that cannot be called, so they have to call us."""
        self._relayed: set[PeerId] = set()
        """Candidates that can be called through a relay only."""

    def of(self, peer: PeerId) -> Reach:
        """Return how a candidate can be called."""
        if peer in self.callers:
            return Reach.NONE
        return Reach.RELAYED if peer in self._relayed else Reach.DIRECT

    def set(self, peer: PeerId, reach: Reach) -> bool:
        """Set how a candidate can be called. Return whether that is a change."""
        if reach == self.of(peer):
            return False
        self.callers.discard(peer)
        self._relayed.discard(peer)
        if reach is Reach.NONE:
            self.callers.add(peer)
        elif reach is Reach.RELAYED:
            self._relayed.add(peer)
        return True
