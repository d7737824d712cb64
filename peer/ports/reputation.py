"""Interface through which the transport reports misbehaving callers."""

from __future__ import annotations

from typing import Protocol

from peer.codes import Code
from peer.protocol.messages import PeerId


class CallerReputation(Protocol):
    """Records offences of callers, and decides which peers are refused. No method blocks."""

    def penalize(self, peer: PeerId, code: Code, reason: str) -> None:
        """Record that a caller that proved its key was refused for something it did."""

    def refused(self, address: str, code: Code, reason: str) -> None:
        """Record that a caller that proved no key was refused."""

    def is_proven(self, peer: PeerId) -> bool:
        """Return whether this peer is proven, so that strangers cannot take its place."""

    def exclusion_reason(self, peer: PeerId) -> str:
        """Return why this peer is refused and for how long, for people to read. Empty: it is not."""


class NoReputation:
    """A `CallerReputation` that records nothing and refuses nobody."""

    def penalize(self, peer: PeerId, code: Code, reason: str) -> None: ...

    def refused(self, address: str, code: Code, reason: str) -> None: ...

    def is_proven(self, peer: PeerId) -> bool:
        return False

    def exclusion_reason(self, peer: PeerId) -> str:
        return ""
