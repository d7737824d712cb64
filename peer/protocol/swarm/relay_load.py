"""What a relay passes on, and whether it takes more.

A relay gives each swap an equal part of its cap. With too many of them all are too slow, and none ends in time. So the
caller says what a swap needs, and the relay takes it only if that leaves enough for each of them. Who is refused asks
another relay, or trains on. The module is pure. Rates are bytes per second each way."""

from __future__ import annotations

from collections.abc import Hashable

WAYS = 2
"""A swap goes both ways, and each way leaves the relay."""


class RelayLoad:
    """The swaps that pass one relay."""

    def __init__(self, cap: float) -> None:
        """`cap`: bytes per second that leave the relay, of all swaps together."""
        self._cap = cap
        self._needs: dict[Hashable, float] = {}

    @property
    def swaps(self) -> int:
        return len(self._needs)

    @property
    def offered(self) -> float:
        """Return what one more swap would get."""
        return self._cap / (WAYS * (len(self._needs) + 1))

    def refusal_reason(self, needs: float) -> str:
        """Return why one more swap that needs so much has no room, for a person; empty: it has."""
        if needs > self._cap / WAYS:
            return f"a swap needs {needs:.0f} bytes per second each way, more than this relay has"
        if max([needs, *self._needs.values()]) > self.offered:
            return f"{len(self._needs)} swaps pass this relay, and one more would be too slow"
        return ""

    def begins(self, swap: Hashable, needs: float) -> None:
        """Note a swap that passes from now on."""
        self._needs[swap] = needs

    def ends(self, swap: Hashable) -> None:
        """Note the end of a swap."""
        self._needs.pop(swap, None)
