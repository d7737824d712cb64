"""How the candidates of a round can be called. Pure."""

from __future__ import annotations

from peer.protocol.messages import PeerId, Reach


class CandidateReach:
    """The reach of each candidate, as the directory or the candidate itself said last. Most can be dialled."""

    def __init__(self) -> None:
        self.callers: set[PeerId] = set()
        """Candidates that nobody can call: they have to call."""
        self._relayed: set[PeerId] = set()
        """Candidates that can be called over a relay alone."""

    def of(self, peer: PeerId) -> Reach:
        """Return how a candidate can be called."""
        if peer in self.callers:
            return Reach.NONE
        return Reach.RELAYED if peer in self._relayed else Reach.DIRECT

    def set(self, peer: PeerId, reach: Reach) -> bool:
        """Take how a candidate can be called; return whether that is new."""
        if reach == self.of(peer):
            return False
        self.callers.discard(peer)
        self._relayed.discard(peer)
        if reach is Reach.NONE:
            self.callers.add(peer)
        elif reach is Reach.RELAYED:
            self._relayed.add(peer)
        return True
