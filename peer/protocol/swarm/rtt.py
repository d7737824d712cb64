"""Time limits of small calls to a peer, from measured round trips, as in TCP (RFC 6298: srtt + 4 rttvar). A link that
fills up makes its calls slower, not its peers dead. So a call that timed out doubles the limit of the next one:
otherwise nothing slow would ever be measured. The module is pure: seconds go in, seconds come out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from peer.protocol.messages import PeerId

FIRST_S = 1.5
"""For the first call to a peer, when no other has been measured either."""
LEAST_S = 1.0
"""A machine that is busy for a moment answers within this."""
MOST_S = 8.0
"""Most seconds, whatever is measured: a round has other candidates."""
GAIN, VARIATION_GAIN, SPREAD = 1 / 8, 1 / 4, 4.0
"""RFC 6298, section 2."""
MAX_PEERS = 1024


@dataclass(slots=True)
class RoundTrip:
    """One estimate. `timeout_s` is None until something was measured or timed out."""

    srtt_s: float | None = None
    rttvar_s: float = 0.0
    _backed_off_s: float | None = None

    def observe(self, took_s: float) -> None:
        """Note a call that was answered after so long."""
        took_s = max(0.0, took_s)
        if self.srtt_s is None:
            self.srtt_s, self.rttvar_s = took_s, took_s / 2
        else:
            self.rttvar_s += VARIATION_GAIN * (abs(self.srtt_s - took_s) - self.rttvar_s)
            self.srtt_s += GAIN * (took_s - self.srtt_s)
        self._backed_off_s = None

    def timed_out(self, after_s: float) -> None:
        """Note a call that was not answered within so long: the next one gets twice that."""
        self._backed_off_s = _bounded(2 * after_s)

    @property
    def timeout_s(self) -> float | None:
        measured = None if self.srtt_s is None else _bounded(self.srtt_s + SPREAD * self.rttvar_s)
        if self._backed_off_s is None or measured is None:
            return self._backed_off_s or measured
        return max(measured, self._backed_off_s)


class RoundTrips:
    """An estimate a peer, and one over all of them: for those never called, since a slow link of our own slows every
    call. Bounded: the least recently called are forgotten."""

    def __init__(self) -> None:
        self._of: OrderedDict[PeerId, RoundTrip] = OrderedDict()
        self._all = RoundTrip()

    def observe(self, peer: PeerId, took_s: float) -> None:
        self._trip(peer).observe(took_s)
        self._all.observe(took_s)

    def timed_out(self, peer: PeerId, after_s: float) -> None:
        """Note a call that timed out. The peer may be dead, so the estimate over all peers stays."""
        self._trip(peer).timed_out(after_s)

    def timeout(self, peer: PeerId) -> float:
        """Return the seconds that a small call to this peer may take, in [LEAST_S, MOST_S]."""
        known = self._of.get(peer)
        own = None if known is None else known.timeout_s
        if own is not None:
            return own
        everyone = self._all.timeout_s
        return FIRST_S if everyone is None else max(FIRST_S, everyone)

    def srtt(self, peer: PeerId) -> float | None:
        """Smoothed round trip in seconds. None: never measured."""
        known = self._of.get(peer)
        return None if known is None else known.srtt_s

    def usual(self) -> float:
        """Smoothed round trip over all calls, in seconds. 0: none was answered yet."""
        return self._all.srtt_s or 0.0

    def forget(self) -> None:
        """Forget everything after a sleep or a move to another network."""
        self._of.clear()
        self._all = RoundTrip()

    def __len__(self) -> int:
        return len(self._of)

    def _trip(self, peer: PeerId) -> RoundTrip:
        trip = self._of.setdefault(peer, RoundTrip())
        self._of.move_to_end(peer)
        while len(self._of) > MAX_PEERS:
            self._of.popitem(last=False)
        return trip


def _bounded(seconds: float) -> float:
    return min(max(seconds, LEAST_S), MOST_S)
