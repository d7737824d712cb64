"""Who signs and checks rosters."""

from __future__ import annotations

from peer.identity import Identity, public_key_of, verify
from peer.protocol.group.roster import ROSTER_DOMAIN
from peer.protocol.messages import PeerId


class KeySigner:
    """Ed25519, by the key that the peer id names."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def sign(self, raw: bytes) -> bytes:
        return self._identity.sign(ROSTER_DOMAIN, raw)

    def verify(self, peer: PeerId, raw: bytes, signature: bytes) -> bool:
        try:
            key = public_key_of(peer)
        except ValueError:
            return False
        return verify(key, ROSTER_DOMAIN, raw, signature)
