"""When to dial an address again whose connection has ended.

A node that was restarted is to be found again at once. One that has too many connections ends ours again and again, and
is left alone ever longer."""

from __future__ import annotations

LONGEST_S = 900.0


class Redial:
    """The addresses that answered, and how soon each is dialled again. Times are seconds, of any origin."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._of: dict[str, tuple[float, float]] = {}

    def answered(self, address: str, now: float) -> None:
        """An address was dialled, and answered."""
        at, pause = self._of.get(address, (float("-inf"), self._first_s))
        stayed = now - at > 2 * pause
        self._of[address] = now, self._first_s if stayed else min(2 * pause, LONGEST_S)

    def is_due(self, address: str, now: float) -> bool:
        """Return whether to dial an address whose connection is gone."""
        at, pause = self._of.get(address, (float("-inf"), 0.0))
        return now - at >= pause
