"""The budget of trainer time that strangers may cost.

In `full` schedules the trainer stands still while a locked partner is waited for. A peer with a fresh key can be locked
with and then stay silent. So a stranger, a partner that never exchanged with us or offended after that, is waited for
out of a small allowance. The allowance refills with time. In the long run strangers cost at most `SHARE` of the
trainer's time in vain, however many keys there are.

A reserve enlarges the allowance where calls take long or a partner says that its inner step is under way. Without it
nobody on a full line could begin in time, and all would stay strangers. The module is pure: `now` is an argument, in
seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from peer.protocol.messages import PeerId

SHARE = 0.01
"""Part of all time that strangers may cost in vain."""
MOST_S = 1.5
"""Most seconds that the allowance holds, and so that one stranger costs without the reserve. It is SHARE of a round if
that is more."""
LEAST_S = 0.3
"""Seconds in the allowance below which no stranger is tried. It could not answer in less."""
MOST_CALLS, LEAST_CALLS = 5.0, 1.5
"""Round trips that one stranger may cost, and that must be in the allowance to try one, if they are longer. The first
byte comes a round trip and a half after the partner has begun."""
KEPT_S = 2 * LEAST_S
"""Seconds in the allowance that only strangers who answer may use up."""
RESERVE_S = 40.0
"""Seconds that strangers may cost beyond the usual allowance where lines or steps are slow. The reserve refills after
the allowance."""
MAX_PROVEN = 4096


class StrangerBudget:
    """The allowance and the peers that are no strangers."""

    def __init__(self, round_s: float | None, call_s: Callable[[], float] = lambda: 0.0) -> None:
        self._usual_s = None if round_s is None else max(MOST_S, SHARE * round_s)
        self._call_s = call_s
        self._left = self._usual_s or 0.0
        self._reserve = RESERVE_S
        self._at = 0.0
        self._proven: OrderedDict[PeerId, None] = OrderedDict()

    def mark_known(self, peer: PeerId) -> None:
        """Note that an exchange with this peer ended well."""
        self._proven[peer] = None
        self._proven.move_to_end(peer)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def offended(self, peer: PeerId) -> None:
        """Make the peer a stranger again."""
        self._proven.pop(peer, None)

    def max_wait(self, peer: PeerId, now: float, late_s: float = 0.0) -> float | None:
        """Return how many seconds this peer may hold up the trainer. 0: it is not to be tried now. None: no special
        bound. `late_s`: how long its own trainer goes on, as it says."""
        return None if peer in self._proven else self.with_strangers(now, late_s)

    def with_strangers(self, now: float, late_s: float = 0.0) -> float | None:
        """Return `max_wait` of a peer that never exchanged with us."""
        if self._usual_s is None:
            return None
        (left, reserve), call_s = self._refilled(now), self._call_s()
        extra_s = max(0.0, MOST_CALLS * call_s - self._usual_s) + late_s
        most_s, least_s = left + min(reserve, extra_s), max(LEAST_S, LEAST_CALLS * call_s) + late_s
        return most_s if most_s >= least_s else 0.0

    def charge(self, seconds: float, now: float) -> None:
        """Charge seconds in which a stranger held up the trainer in vain."""
        left, reserve = self._refilled(now)
        self._left = max(0.0, left - seconds)
        self._reserve = max(0.0, reserve - max(0.0, seconds - left))
        self._at = now

    def charge_silence(self, seconds: float, now: float) -> None:
        """Charge seconds in which only strangers were waited for that said nothing. They use up no more than what is
        above `KEPT_S`: records that nobody stands behind must not cost others their chance."""
        left, _ = self._refilled(now)
        self.charge(min(seconds, max(0.0, left - KEPT_S)), now)

    def waits_for_silent(self, seconds: float, now: float) -> bool:
        """Whether strangers that say nothing may hold up the trainer for so long now."""
        return self._usual_s is None or self._refilled(now)[0] >= KEPT_S + seconds

    def _refilled(self, now: float) -> tuple[float, float]:
        """Return the usual allowance and the reserve."""
        assert self._usual_s is not None
        sum_ = self._left + SHARE * max(0.0, now - self._at)
        left = min(self._usual_s, sum_)
        return left, min(RESERVE_S, self._reserve + sum_ - left)
