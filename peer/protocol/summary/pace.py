"""When a peer sends its next summary: under a megabyte a day, whatever happens."""

from __future__ import annotations

import math
import random

from peer.protocol.token_bucket import Rate, TokenBuckets

EVERY_S = 80.0
"""Seconds between two summaries at least. A day of them is below a megabyte, with what carries each over the line."""
JITTER = 0.08
"""Part of `EVERY_S` by which a wait is longer at most, so that peers spread out."""
SENDING = Rate(1 / EVERY_S, 3.0)
"""Summaries, those of a changed state among them."""
_ALL = "all"


class SummaryPace:
    """Owned by one task. `now` is run time, in seconds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sending: TokenBuckets[str] = TokenBuckets(SENDING, 1)
        self._next = -math.inf

    def is_due(self, now: float, *, changed: bool) -> bool:
        """Return whether a summary goes out now; then it counts as sent. `changed`: our state is another one."""
        if now < self._next and not changed:
            return False
        if self._sending.take(_ALL, now) > 0:
            return False
        self._next = now + EVERY_S * (1 + JITTER * self._rng.random())
        return True
