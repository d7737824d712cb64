"""When a peer sends its next summary: less than a megabyte a day in any case."""

from __future__ import annotations

import math
import random

from peer.protocol.token_bucket import Rate, TokenBuckets

EVERY_S = 80.0
"""Minimum seconds between two summaries. One day of them is less than a megabyte, including overhead."""
JITTER = 0.08
"""Maximum fraction of `EVERY_S` by which a wait is extended at random, so that peers do not send at the same time."""
SENDING = Rate(1 / EVERY_S, 3.0)
"""Rate limit of all summaries, including those for a changed state."""
_ALL = "all"


class SummaryPace:
    """Decides when summaries are sent. `now`: run time in seconds. Not safe for several tasks."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sending: TokenBuckets[str] = TokenBuckets(SENDING, 1)
        self._next = -math.inf

    def is_due(self, now: float, *, changed: bool) -> bool:
        """Return whether to send a summary now; it is then counted as sent. `changed`: our state has changed."""
        if now < self._next and not changed:
            return False
        if self._sending.take(_ALL, now) > 0:
            return False
        self._next = now + EVERY_S * (1 + JITTER * self._rng.random())
        return True
