"""Tokens that a server gave to callers which proved their key. The module is pure: `now` is an argument."""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from collections.abc import Collection

from peer.protocol.messages import PeerId

TOKEN_BYTES = 32
LIFETIME_S = 600.0
MAX_TOKENS = 4096


class TokenTable:
    """Bounded table of tokens. The least recently used one goes first, and its owner says Hello again."""

    def __init__(self, limit: int = MAX_TOKENS) -> None:
        self._limit = limit
        self._owners: OrderedDict[bytes, tuple[PeerId, float, bytes]] = OrderedDict()
        """By token: its owner, until when it is good, and the nonce of the owner's start (empty: a guest's)."""

    def issue(self, peer: PeerId, now: float, start: bytes = b"") -> bytes:
        """Make a token for a caller that proved to be `peer`; it is good for `LIFETIME_S`. `start`: the nonce of its
        process's start."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._owners[token] = (peer, now + LIFETIME_S, start)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)
        return token

    def owner(self, token: bytes, now: float) -> PeerId | None:
        """Return the owner of this token; None when it was never given or has run out."""
        held = self._owners.get(token)
        if held is None:
            return None
        if held[1] <= now:
            self._end(token)  # for good, whatever the clock does
            return None
        self._owners.move_to_end(token)
        return held[0]

    def expire(self) -> None:
        """Let all tokens run out."""
        for token in self._owners:
            self._end(token)

    def expire_starts(self, peer: PeerId, starts: Collection[bytes]) -> None:
        """Let the tokens of these starts of a peer run out, so that those processes say Hello again."""
        for token, (owner, _, start) in self._owners.items():
            if owner == peer and start in starts:
                self._end(token)

    def _end(self, token: bytes) -> None:
        owner, _, start = self._owners[token]
        self._owners[token] = owner, -math.inf, start

    def gave(self, token: bytes) -> bool:
        """Return whether this token was given here, even if it has run out."""
        return token in self._owners
