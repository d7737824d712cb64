"""Tokens that a server gave to callers which proved their key. The module is pure: `now` is an argument."""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict

from peer.protocol.messages import PeerId

TOKEN_BYTES = 32
LIFETIME_S = 600.0
MAX_TOKENS = 4096


class TokenTable:
    """Bounded table of tokens. The least recently used one goes first, and its owner says Hello again."""

    def __init__(self, limit: int = MAX_TOKENS) -> None:
        self._limit = limit
        self._owners: OrderedDict[bytes, tuple[PeerId, float]] = OrderedDict()

    def issue(self, peer: PeerId, now: float) -> bytes:
        """Make a token for a caller that proved to be `peer`; it is good for `LIFETIME_S`."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._owners[token] = (peer, now + LIFETIME_S)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)
        return token

    def owner(self, token: bytes, now: float) -> PeerId | None:
        """Return the owner of this token; None when it was never given or has run out."""
        held = self._owners.get(token)
        if held is None:
            return None
        if held[1] <= now:
            self._owners[token] = (held[0], -math.inf)  # for good, whatever the clock does
            return None
        self._owners.move_to_end(token)
        return held[0]

    def expire(self) -> None:
        """Let all tokens run out."""
        self._owners.update({token: (peer, -math.inf) for token, (peer, _) in self._owners.items()})

    def gave(self, token: bytes) -> bool:
        """Return whether this token was given here, even if it has run out."""
        return token in self._owners
