"""Excuses for swaps that failed because a relay disappeared during the transfer: neither partner is to blame.

A partner chooses its relays itself, so it could use one that disappears on purpose. Therefore only a few failures with
each partner are excused. Further ones count like any other failure. The module is pure."""

from __future__ import annotations

from collections import OrderedDict, deque

from peer.protocol.messages import PeerId

EXCUSED = 2
"""Failed swaps with one partner that are excused within `WINDOW_S` seconds."""
WINDOW_S = 600.0
MAX_PARTNERS = 1024


class BrokenPaths:
    """Remembers when failures of each partner were excused. `now`: seconds of any one clock."""

    def __init__(self) -> None:
        self._excused: OrderedDict[PeerId, deque[float]] = OrderedDict()

    def excuses(self, partner: PeerId, now: float) -> bool:
        """Return whether one more failure with this partner is excused, and count it if so."""
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
