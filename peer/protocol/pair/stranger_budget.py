"""How long strangers may hold up the trainer. In `full` schedules the trainer stands still while a locked partner is
waited for; whoever makes a fresh key can be locked with, and then say nothing. So a partner that never exchanged with
us (or offended since) is waited for out of a small allowance that refills with time: in the long run strangers cost at
most `SHARE` of the trainer's time in vain, however many keys there are. Where calls take long, as on a line that is
full, or a partner says that its inner step is under way yet, it is larger by a reserve: with the usual one nobody could
begin in time, and all would stay strangers for ever. Pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from peer.protocol.messages import PeerId

SHARE = 0.01
"""Part of all time that strangers may cost in vain."""
MOST_S = 1.5
"""What the allowance holds at most, and so the most one stranger may cost without the reserve; or SHARE of a round, if
that is more."""
LEAST_S = 0.3
"""With less than this in it no stranger is tried: it would be given up before it could answer."""
MOST_CALLS, LEAST_CALLS = 5.0, 1.5
"""Round trips of ours that one stranger may cost, and that have to be there to try one, if those are longer. The first
byte comes a round trip and a half after the partner has begun."""
RESERVE_S = 40.0
"""What strangers may cost beyond the usual allowance where lines or steps are slow; it refills when that is full."""
MAX_PROVEN = 4096


class StrangerBudget:
    """`round_s`: length of a round in seconds; None: rounds are counted in steps, where machines are alike and waiting
    for each other is the method, and nobody is a stranger. `call_s`: seconds that a small call of ours takes, as
    measured; 0: not yet."""

    def __init__(self, round_s: float | None, call_s: Callable[[], float] = lambda: 0.0) -> None:
        self._usual_s = None if round_s is None else max(MOST_S, SHARE * round_s)
        self._call_s = call_s
        self._left = self._usual_s or 0.0
        self._reserve = RESERVE_S
        self._at = 0.0
        self._proven: OrderedDict[PeerId, None] = OrderedDict()

    def mark_known(self, peer: PeerId) -> None:
        """An exchange with this peer ended well."""
        self._proven[peer] = None
        self._proven.move_to_end(peer)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def offended(self, peer: PeerId) -> None:
        """It is a stranger again."""
        self._proven.pop(peer, None)

    def max_wait(self, peer: PeerId, now: float, late_s: float = 0.0) -> float | None:
        """Seconds the trainer may be held up by this peer; 0: it is not to be tried now. None: no special bound.
        `late_s`: so long it says that its own trainer goes on."""
        return None if peer in self._proven else self.with_strangers(now, late_s)

    def with_strangers(self, now: float, late_s: float = 0.0) -> float | None:
        """As `of`, for whoever never exchanged with us."""
        if self._usual_s is None:
            return None
        (left, reserve), call_s = self._refilled(now), self._call_s()
        extra_s = max(0.0, MOST_CALLS * call_s - self._usual_s) + late_s
        most_s, least_s = left + min(reserve, extra_s), max(LEAST_S, LEAST_CALLS * call_s) + late_s
        return most_s if most_s >= least_s else 0.0

    def charge(self, seconds: float, now: float) -> None:
        """The trainer was held in vain by a stranger."""
        left, reserve = self._refilled(now)
        self._left = max(0.0, left - seconds)
        self._reserve = max(0.0, reserve - max(0.0, seconds - left))
        self._at = now

    def _refilled(self, now: float) -> tuple[float, float]:
        """The usual allowance, and the reserve."""
        assert self._usual_s is not None
        sum_ = self._left + SHARE * max(0.0, now - self._at)
        left = min(self._usual_s, sum_)
        return left, min(RESERVE_S, self._reserve + sum_ - left)
