"""Who is told what callers do wrong."""

from __future__ import annotations

from typing import Protocol

from peer.codes import Code
from peer.protocol.messages import PeerId


class CallerReputation(Protocol):
    """Who is told of what callers do wrong, and says whom to turn away. Never blocks."""

    def penalize(self, peer: PeerId, code: Code, reason: str) -> None:
        """A caller that proved its key was refused for something it did."""

    def refused(self, address: str, code: Code, reason: str) -> None:
        """A caller that proved no key was refused."""

    def is_proven(self, peer: PeerId) -> bool:
        """Whether the peer earned trust, so that strangers never take its place."""

    def exclusion_reason(self, peer: PeerId) -> str:
        """Why a peer is out of favour and for how long, for a person; empty: it is not."""


class NoReputation:
    """A `Conduct` that minds nothing: until a daemon says otherwise."""

    def penalize(self, peer: PeerId, code: Code, reason: str) -> None: ...

    def refused(self, address: str, code: Code, reason: str) -> None: ...

    def is_proven(self, peer: PeerId) -> bool:
        return False

    def exclusion_reason(self, peer: PeerId) -> str:
        return ""
