"""The correction of a clock by what other peers say, of which some may lie.

Keys are free, so all peers of a network have one voice, and the middle of the voices counts. No voice moves the clock
beyond a bound, counted from the machine's own clock: however often peers are asked, the lies do not add up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

OPERATOR = "operator"
"""The voice of the nodes that the ticket names."""
KEPT_OFFSETS = 9
"""Last offsets of each voice that count."""
MAX_VOICES = 64


class ClockFilter:
    """What others measured of this machine's clock. Offsets are theirs minus its uncorrected clock, seconds."""

    def __init__(self) -> None:
        self._bound_s = math.inf
        self._voices: dict[str, deque[float]] = {}

    def bound(self, seconds: float) -> None:
        """Believe no offset beyond this many seconds, either way."""
        self._bound_s = seconds

    def forget(self) -> None:
        """Drop all that was measured."""
        self._voices.clear()

    def observe(self, offset_s: float, voice: str) -> None:
        """Take an offset that a peer of a network measured (`voice`). One beyond the bound is dropped."""
        if not abs(offset_s) <= self._bound_s:
            return
        self._voices.setdefault(voice, deque(maxlen=KEPT_OFFSETS)).append(offset_s)
        while len(self._voices) > MAX_VOICES:
            del self._voices[next(iter(self._voices))]

    def correction(self) -> float | None:
        """Return the middle of the voices. None: nothing was measured.

        Of two in the middle it is the operator's, else the one that moves the clock less."""
        words = {voice: _middle((offset, True) for offset in said) for voice, said in self._voices.items()}
        return _middle((offset, voice != OPERATOR) for voice, offset in words.items()) if words else None

    def within(self, correction_s: float) -> float:
        """Return a correction cut to the bound."""
        return max(-self._bound_s, min(self._bound_s, correction_s))


def _middle(words: Iterable[tuple[float, bool]]) -> float:
    found = sorted(words)
    middle = found[(len(found) - 1) // 2 : len(found) // 2 + 1]
    return min(middle, key=lambda word: (word[1], abs(word[0])))[0]
