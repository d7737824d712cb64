"""Tokens that a server issued to callers that proved their key. No I/O; `now` is an argument."""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from collections.abc import Collection

from peer.protocol.messages import PeerId

TOKEN_BYTES = 32
LIFETIME_S = 600.0
"""Validity of a token in seconds."""
MAX_TOKENS = 4096


class TokenTable:
    """Bounded table of tokens. Evicts the least recently used token, whose owner then has to say Hello again."""

    def __init__(self, limit: int = MAX_TOKENS) -> None:
        self._limit = limit
        self._owners: OrderedDict[bytes, tuple[PeerId, float, bytes]] = OrderedDict()
        """Token -> its owner, its expiry, and the nonce of the owner's start (empty for a guest)."""

    def issue(self, peer: PeerId, now: float, start: bytes = b"") -> bytes:
        """Create a token for a caller that proved to be `peer`, valid for `LIFETIME_S`. `start`: the nonce of its
        process's start."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._owners[token] = (peer, now + LIFETIME_S, start)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)
        return token

    def owner(self, token: bytes, now: float) -> PeerId | None:
        """Return the owner of a token; None: it is unknown or expired."""
        held = self._owners.get(token)
        if held is None:
            return None
        if held[1] <= now:
            self._end(token)  # permanently, even if the clock is set back
            return None
        self._owners.move_to_end(token)
        return held[0]

    def expire(self) -> None:
        """Expire all tokens."""
        for token in self._owners:
            self._end(token)

    def expire_starts(self, peer: PeerId, starts: Collection[bytes]) -> None:
        """Expire the tokens of these starts of a peer, so that their processes say Hello again."""
        for token, (owner, _, start) in self._owners.items():
            if owner == peer and start in starts:
                self._end(token)

    def _end(self, token: bytes) -> None:
        owner, _, start = self._owners[token]
        self._owners[token] = owner, -math.inf, start

    def was_issued(self, token: bytes) -> bool:
        """Return whether this token was issued here, even if it has expired."""
        return token in self._owners
