"""Robust estimate of this machine's clock error from offsets that other peers report, some of which may be false.

Keys are free, so all peers of one network count as one vote, and the median of the votes is the estimate. The
correction is bounded relative to the machine's own clock, not to the last correction. So false reports cannot
accumulate, however many of them arrive."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

OPERATOR = "operator"
"""Name of the network to which the operator's nodes, which the ticket names, count."""
KEPT_OFFSETS = 9
"""Number of latest offsets of each network that count."""
MAX_VOICES = 64


class ClockFilter:
    """Offsets between the clocks of other peers and this machine's uncorrected clock, and the correction that follows.

    An offset is the other peer's clock minus ours, in seconds."""

    def __init__(self) -> None:
        self._bound_s = math.inf
        self._voices: dict[str, deque[float]] = {}

    def bound(self, seconds: float) -> None:
        """Ignore offsets larger than this many seconds in either direction."""
        self._bound_s = seconds

    def forget(self) -> None:
        """Drop all measured offsets."""
        self._voices.clear()

    def observe(self, offset_s: float, voice: str) -> None:
        """Add an offset that a peer reported. `voice`: the network of that peer, whose peers share one vote. An offset
        beyond the bound is dropped."""
        if not abs(offset_s) <= self._bound_s:
            return
        self._voices.setdefault(voice, deque(maxlen=KEPT_OFFSETS)).append(offset_s)
        while len(self._voices) > MAX_VOICES:
            del self._voices[next(iter(self._voices))]

    def correction(self) -> float | None:
        """Return the median over the networks of each network's median offset, in seconds. None: nothing was measured.

        With an even number of values there are two in the middle. Of these, the one of the operator's nodes is
        returned, or else the one that is nearer to zero."""
        words = {voice: _middle((offset, True) for offset in said) for voice, said in self._voices.items()}
        return _middle((offset, voice != OPERATOR) for voice, offset in words.items()) if words else None

    def within(self, correction_s: float) -> float:
        """Return the correction, clamped to the bound."""
        return max(-self._bound_s, min(self._bound_s, correction_s))


def _middle(words: Iterable[tuple[float, bool]]) -> float:
    found = sorted(words)
    middle = found[(len(found) - 1) // 2 : len(found) // 2 + 1]
    return min(middle, key=lambda word: (word[1], abs(word[0])))[0]
