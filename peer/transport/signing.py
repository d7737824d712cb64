"""Signatures of statements that peers exchange: rosters, shard receipts and swap receipts."""

from __future__ import annotations

from peer.identity import Identity, public_key_of, verify
from peer.protocol.group.roster import ROSTER_DOMAIN
from peer.protocol.messages import PeerId


class KeySigner:
    """Signs with the peer's Ed25519 key, and verifies with the key that a peer id contains."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def sign(self, raw: bytes) -> bytes:
        return self._identity.sign(ROSTER_DOMAIN, raw)

    def verify(self, peer: PeerId, raw: bytes, signature: bytes) -> bool:
        return holds(peer, raw, signature)


def holds(peer: PeerId, raw: bytes, signature: bytes) -> bool:
    """Return whether `signature` was made by this peer's `KeySigner` over `raw`. Needs no key of our own."""
    try:
        key = public_key_of(peer)
    except ValueError:
        return False
    return verify(key, ROSTER_DOMAIN, raw, signature)
