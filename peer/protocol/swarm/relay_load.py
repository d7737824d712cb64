"""Admission of swaps to a relay, by the rate that each needs.

A relay gives each swap an equal part of its cap. With too many swaps all would be too slow, and none would end in time.
So the caller states the rate that a swap needs, and the relay admits it only if all swaps still get what they need. A
caller that is refused asks another relay, or trains on alone. The module is pure. Rates are bytes per second in each
direction."""

from __future__ import annotations

from collections.abc import Hashable

WAYS = 2
"""A swap has two directions, and both leave the relay."""


class RelayLoad:
    """The swaps that pass through one relay."""

    def __init__(self, cap: float) -> None:
        """`cap`: bytes per second that leave the relay, for all swaps together."""
        self._cap = cap
        self._needs: dict[Hashable, float] = {}

    @property
    def swaps(self) -> int:
        return len(self._needs)

    @property
    def offered(self) -> float:
        """Bytes per second in each direction that one more swap would get."""
        return self._cap / (WAYS * (len(self._needs) + 1))

    def refusal_reason(self, needs: float) -> str:
        """Return why a swap that needs this rate is refused, for people to read; empty: it is admitted."""
        if needs > self._cap / WAYS:
            return f"a swap needs {needs:.0f} bytes per second each way, more than this relay has"
        if max([needs, *self._needs.values()]) > self.offered:
            return f"{len(self._needs)} swaps pass this relay, and one more would be too slow"
        return ""

    def begins(self, swap: Hashable, needs: float) -> None:
        """Record that a swap has started."""
        self._needs[swap] = needs

    def ends(self, swap: Hashable) -> None:
        """Record that a swap has ended."""
        self._needs.pop(swap, None)
