"""Signs and checks what peers agree on."""

from __future__ import annotations

from typing import Protocol

from peer.protocol.messages import PeerId


class Signer(Protocol):
    def sign(self, raw: bytes) -> bytes: ...

    def verify(self, peer: PeerId, raw: bytes, signature: bytes) -> bool: ...
