"""Timeouts of small calls to a peer, from measured round trips as in TCP (RFC 6298: srtt + 4 rttvar). A full link
delays the answers of peers that are alive. So each timeout doubles the limit of the next call: with a constant limit,
no call over a slow link would ever be answered in time and measured. The module is pure: all times in seconds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from peer.protocol.messages import PeerId

FIRST_S = 1.5
"""Timeout of the first call to a peer when no call at all was measured yet."""
LEAST_S = 1.0
"""Minimum timeout: a machine that is busy for a moment answers within this."""
MOST_S = 8.0
"""Maximum timeout: a round has other candidates."""
GAIN, VARIATION_GAIN, SPREAD = 1 / 8, 1 / 4, 4.0
"""Constants of RFC 6298, section 2."""
MAX_PEERS = 1024


@dataclass(slots=True)
class RoundTrip:
    """The estimate for one peer. `timeout_s` is None until a call was measured or timed out."""

    srtt_s: float | None = None
    rttvar_s: float = 0.0
    _backed_off_s: float | None = None

    def observe(self, took_s: float) -> None:
        """Record that a call was answered after `took_s` seconds."""
        took_s = max(0.0, took_s)
        if self.srtt_s is None:
            self.srtt_s, self.rttvar_s = took_s, took_s / 2
        else:
            self.rttvar_s += VARIATION_GAIN * (abs(self.srtt_s - took_s) - self.rttvar_s)
            self.srtt_s += GAIN * (took_s - self.srtt_s)
        self._backed_off_s = None

    def timed_out(self, after_s: float) -> None:
        """Record that a call was not answered within `after_s` seconds. The next one gets twice that."""
        self._backed_off_s = _bounded(2 * after_s)

    @property
    def timeout_s(self) -> float | None:
        """Timeout of the next call in seconds. None: nothing was measured."""
        measured = None if self.srtt_s is None else _bounded(self.srtt_s + SPREAD * self.rttvar_s)
        if self._backed_off_s is None or measured is None:
            return self._backed_off_s or measured
        return max(measured, self._backed_off_s)


class RoundTrips:
    """One estimate for each peer, and one over all peers. The latter is used for peers that were never called, because
    a slow link of our own delays every call. Least recently called peers are evicted."""

    def __init__(self) -> None:
        self._of: OrderedDict[PeerId, RoundTrip] = OrderedDict()
        self._all = RoundTrip()

    def observe(self, peer: PeerId, took_s: float) -> None:
        """Record that a call to this peer was answered after `took_s` seconds."""
        self._trip(peer).observe(took_s)
        self._all.observe(took_s)

    def timed_out(self, peer: PeerId, after_s: float) -> None:
        """Record that a call to this peer timed out. The peer may be dead, so the estimate over all peers does not
        change."""
        self._trip(peer).timed_out(after_s)

    def timeout(self, peer: PeerId) -> float:
        """Return the timeout in seconds of a small call to this peer, in [LEAST_S, MOST_S]."""
        known = self._of.get(peer)
        own = None if known is None else known.timeout_s
        if own is not None:
            return own
        everyone = self._all.timeout_s
        return FIRST_S if everyone is None else max(FIRST_S, everyone)

    def srtt(self, peer: PeerId) -> float | None:
        """Return the smoothed round trip in seconds. None: never measured."""
        known = self._of.get(peer)
        return None if known is None else known.srtt_s

    def usual(self) -> float:
        """Return the smoothed round trip over all calls in seconds. 0: none was answered yet."""
        return self._all.srtt_s or 0.0

    def forget(self) -> None:
        """Remove all estimates after a sleep or a move to another network."""
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
