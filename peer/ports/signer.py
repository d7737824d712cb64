"""Interface for signatures of groups."""

from __future__ import annotations

from typing import Protocol

from peer.protocol.messages import PeerId


class Signer(Protocol):
    """Signs with this peer's key, and verifies signatures of other peers."""

    def sign(self, raw: bytes) -> bytes: ...

    def verify(self, peer: PeerId, raw: bytes, signature: bytes) -> bool: ...
