"""Decides when to dial an address again after its connection has ended.

A node that was restarted should be found again at once. A node with too many connections closes ours again and again,
and is dialled ever more rarely."""

from __future__ import annotations

LONGEST_S = 900.0
"""Longest pause before an address is dialled again, in seconds."""


class Redial:
    """The addresses that answered, and the pause before each is dialled again. Times are monotonic seconds."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._of: dict[str, tuple[float, float]] = {}

    def answered(self, address: str, now: float) -> None:
        """Record that an address was dialled and answered."""
        at, pause = self._of.get(address, (float("-inf"), self._first_s))
        stayed = now - at > 2 * pause
        self._of[address] = now, self._first_s if stayed else min(2 * pause, LONGEST_S)

    def is_due(self, address: str, now: float) -> bool:
        """Return whether to dial an address whose connection has ended."""
        at, pause = self._of.get(address, (float("-inf"), 0.0))
        return now - at >= pause
