"""Swaps that failed as a relay was gone in their middle: neither partner is to blame.

A partner names its relays itself, so it might bring one that plays dead whenever it likes. Therefore a partner is
excused a few times alone. After that its failures count as any others. The module is pure."""

from __future__ import annotations

from collections import OrderedDict, deque

from peer.protocol.messages import PeerId

EXCUSED = 2
"""Failures of swaps with one partner that are excused within `WINDOW_S`."""
WINDOW_S = 600.0
MAX_PARTNERS = 1024


class BrokenPaths:
    """Remembers whose failures were excused. `now`: seconds of one clock."""

    def __init__(self) -> None:
        self._excused: OrderedDict[PeerId, deque[float]] = OrderedDict()

    def excuses(self, partner: PeerId, now: float) -> bool:
        """Return whether one more failure with this partner is the path's, and note it."""
        before = self._excused.setdefault(partner, deque())
        self._excused.move_to_end(partner)
        while before and before[0] <= now - WINDOW_S:
            before.popleft()
        if len(before) >= EXCUSED:
            return False
        before.append(now)
        if len(self._excused) > MAX_PARTNERS:
            self._excused.popitem(last=False)
        return True
