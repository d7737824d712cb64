"""How long strangers may hold up the trainer. In `full` schedules the trainer stands still while a locked partner is
waited for; whoever makes a fresh key can be locked with, and then say nothing. So a partner that never exchanged with
us (or offended since) is waited for out of a small allowance that refills with time: in the long run strangers cost at
most `SHARE` of the trainer's time in vain, however many keys there are. Pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import OrderedDict

from peer.protocol.messages import PeerId

SHARE = 0.01
"""Part of all time that strangers may cost in vain."""
MOST_S = 1.5
"""What the allowance holds at most, and so the most one stranger may cost; or SHARE of a round, if that is more."""
LEAST_S = 0.3
"""With less than this in it no stranger is tried: it would be given up before it could answer."""
MAX_PROVEN = 4096


class Patience:
    """`round_s`: length of a round in seconds; None: rounds are counted in steps, where machines are alike and waiting
    for each other is the method, and nobody is a stranger."""

    def __init__(self, round_s: float | None) -> None:
        self._most = None if round_s is None else max(MOST_S, SHARE * round_s)
        self._left = self._most or 0.0
        self._at = 0.0
        self._proven: OrderedDict[PeerId, None] = OrderedDict()

    def well(self, peer: PeerId) -> None:
        """An exchange with this peer ended well."""
        self._proven[peer] = None
        self._proven.move_to_end(peer)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def offended(self, peer: PeerId) -> None:
        """It is a stranger again."""
        self._proven.pop(peer, None)

    def of(self, peer: PeerId, now: float) -> float | None:
        """Seconds the trainer may be held up by this peer; 0: it is not to be tried now. None: no special bound."""
        return None if peer in self._proven else self.with_strangers(now)

    def with_strangers(self, now: float) -> float | None:
        """As `of`, for whoever never exchanged with us."""
        if self._most is None:
            return None
        left = self._refilled(now)
        return left if left >= LEAST_S else 0.0

    def spend(self, seconds: float, now: float) -> None:
        """The trainer was held in vain by a stranger."""
        self._left, self._at = max(0.0, self._refilled(now) - seconds), now

    def _refilled(self, now: float) -> float:
        assert self._most is not None
        return min(self._most, self._left + SHARE * max(0.0, now - self._at))
