"""Budget of trainer time that strangers may waste.

In `full` schedules the trainer stands still while it waits for a locked partner. A peer with a fresh key could lock and
then stay silent. So the time spent waiting for strangers (partners that never exchanged with us, or offended since) is
taken from a small allowance that refills over time. In the long run strangers waste at most the fraction `SHARE` of the
trainer's time, however many keys there are.

A reserve adds to the allowance when calls take long or a partner reports that its inner step is not finished. Without
it, peers on a fully used line could never complete a first exchange, and all would remain strangers. The module is
pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from peer.protocol.messages import PeerId

SHARE = 0.01
"""Fraction of all time that strangers may waste."""
MOST_S = 1.5
"""Maximum seconds in the allowance, and so the maximum for one stranger without the reserve. `SHARE` of a round if that
is longer."""
LEAST_S = 0.3
"""With fewer seconds in the allowance, no stranger is tried: it could not answer in time."""
MOST_CALLS, LEAST_CALLS = 5.0, 1.5
"""`MOST_S` and `LEAST_S` in round trips, for calls so slow that these are longer. The first byte arrives one and a half
round trips after the partner has begun."""
KEPT_S = 2 * LEAST_S
"""Seconds of the allowance that only strangers who answer may use."""
RESERVE_S = 40.0
"""Seconds of the reserve, for slow lines and slow steps. It refills after the allowance."""
MAX_PROVEN = 4096


class StrangerBudget:
    """The allowance, the reserve, and the peers that are no strangers.

    `round_s`: length of a round in seconds; None: no limit. `call_s`: returns the usual round trip in seconds."""

    def __init__(self, round_s: float | None, call_s: Callable[[], float] = lambda: 0.0) -> None:
        self._usual_s = None if round_s is None else max(MOST_S, SHARE * round_s)
        self._call_s = call_s
        self._left = self._usual_s or 0.0
        self._reserve = RESERVE_S
        self._at = 0.0
        self._proven: OrderedDict[PeerId, None] = OrderedDict()

    def mark_known(self, peer: PeerId) -> None:
        """Record a successful exchange with this peer: it is no stranger."""
        self._proven[peer] = None
        self._proven.move_to_end(peer)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def offended(self, peer: PeerId) -> None:
        """Make this peer a stranger again."""
        self._proven.pop(peer, None)

    def max_wait(self, peer: PeerId, now: float, late_s: float = 0.0) -> float | None:
        """Return for how many seconds this peer may hold up the trainer. 0: do not try it now. None: no limit.
        `late_s`: seconds until its trainer stops, according to the peer."""
        return None if peer in self._proven else self.with_strangers(now, late_s)

    def with_strangers(self, now: float, late_s: float = 0.0) -> float | None:
        """Return `max_wait` for a peer that never exchanged with us."""
        if self._usual_s is None:
            return None
        (left, reserve), call_s = self._refilled(now), self._call_s()
        extra_s = max(0.0, MOST_CALLS * call_s - self._usual_s) + late_s
        most_s, least_s = left + min(reserve, extra_s), max(LEAST_S, LEAST_CALLS * call_s) + late_s
        return most_s if most_s >= least_s else 0.0

    def charge(self, seconds: float, now: float) -> None:
        """Subtract seconds for which a stranger held up the trainer without an exchange."""
        left, reserve = self._refilled(now)
        self._left = max(0.0, left - seconds)
        self._reserve = max(0.0, reserve - max(0.0, seconds - left))
        self._at = now

    def charge_silence(self, seconds: float, now: float) -> None:
        """Subtract seconds for which the trainer waited for strangers that did not answer at all. This leaves `KEPT_S`
        in the allowance, so that records of nonexistent peers cannot take the chance from strangers who answer."""
        left, _ = self._refilled(now)
        self.charge(min(seconds, max(0.0, left - KEPT_S)), now)

    def waits_for_silent(self, seconds: float, now: float) -> bool:
        """Return whether strangers that have not answered may hold up the trainer for this many seconds now."""
        return self._usual_s is None or self._refilled(now)[0] >= KEPT_S + seconds

    def _refilled(self, now: float) -> tuple[float, float]:
        """Return the allowance and the reserve at `now`, in seconds."""
        assert self._usual_s is not None
        sum_ = self._left + SHARE * max(0.0, now - self._at)
        left = min(self._usual_s, sum_)
        return left, min(RESERVE_S, self._reserve + sum_ - left)
