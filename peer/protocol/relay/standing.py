"""The standing of relays: which of them failed us lately, and is left.

A relay can stall, drop or garble what it passes, and so can the peer at the other end. So a single failure proves
nothing, and many with one peer prove no more than two. A relay is left for some minutes when it failed twice, and with
as many peers as it worked with. Small calls and transfers count apart, as a relay may lose only what is large.

A relay that is gone breaks all that it carries, and lies about nothing. What broke just then is no failure of it, nor
of the peers at the other ends. It is put aside until it is likely to be back. Each time within `WINDOW_S` that is twice
as long, so a relay that only plays dead is soon hardly used. The module is pure."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from peer.protocol.messages import PeerId

WINDOW_S = 600.0
"""Seconds for which a failure or a success counts."""
FAILURES = 2
"""Failures at which a relay may be left: one round with a broken swap has as many."""
LEFT_S = 600.0
"""Seconds for which a relay that was left is not used while there is another."""
AWAY_S = 10.0
"""Seconds for which a relay is put aside that was found gone for the first time. A daemon starts again within that."""
TOGETHER_S = 2.0
"""What broke so long before a relay was found gone broke with it."""
MAX_KEPT = 16
"""Failures and successes kept of one relay with one peer."""
MAX_PEERS_KEPT = 64
"""Peers kept of one relay. The one that was met least lately is forgotten first."""
MAX_RELAYS_KNOWN = 256


@dataclass(slots=True)
class _Ends:
    """The circuits of one kind to each peer: when each ended, and whether it failed."""

    of: OrderedDict[PeerId, deque[tuple[float, bool]]] = field(default_factory=OrderedDict)

    def note(self, other: PeerId, now: float, *, failed: bool) -> None:
        self.of.setdefault(other, deque(maxlen=MAX_KEPT)).append((now, failed))
        self.of.move_to_end(other)
        if len(self.of) > MAX_PEERS_KEPT:
            self.of.popitem(last=False)

    def forget(self, before: float) -> None:
        for other, ends in list(self.of.items()):
            while ends and ends[0][0] < before:
                ends.popleft()
            if not ends:
                del self.of[other]

    @property
    def failures(self) -> int:
        return sum(failed for ends in self.of.values() for _, failed in ends)

    def fail_most(self) -> bool:
        """Return whether they failed with as many peers as they worked with. With a peer with which they did both, they
        failed if they did so as often."""
        against = sum(2 * sum(failed for _, failed in ends) >= len(ends) for ends in self.of.values())
        return 2 * against >= len(self.of) > 0


@dataclass(slots=True)
class _Record:
    bulk: _Ends = field(default_factory=_Ends)
    small: _Ends = field(default_factory=_Ends)
    left_until: float = 0.0
    gone_at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    """The moments within `WINDOW_S` at which it was found gone."""
    away_until: float = -math.inf
    broken: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """When a transfer with a peer last broke as the relay was gone."""

    def fell(self, at: float) -> bool:
        """Return whether what broke then broke as the relay was gone. Later it counts, though the relay is still put
        aside: it is used where nothing else remains."""
        return bool(self.gone_at) and self.gone_at[-1] - TOGETHER_S <= at < self.gone_at[-1] + AWAY_S

    def breaks(self, other: PeerId, at: float) -> None:
        self.broken[other] = at
        self.broken.move_to_end(other)
        if len(self.broken) > MAX_PEERS_KEPT:
            self.broken.popitem(last=False)


class RelayStanding:
    """What happened on circuits of each relay. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._records: dict[PeerId, _Record] = {}

    def worked(self, relay: PeerId, other: PeerId, now: float, *, bulk: bool) -> None:
        """Note that a circuit to a peer carried a whole transfer (`bulk`), or a small call and its answer."""
        record = self._of(relay, now)
        (record.bulk if bulk else record.small).note(other, now, failed=False)

    def failed(self, relay: PeerId, other: PeerId, why: str, now: float, *, bulk: bool) -> str:
        """Note that a circuit to a peer failed. Return why the relay is left from now on, for a person; empty: it is
        not, or was left before."""
        record = self._of(relay, now)
        if record.fell(now):
            if bulk:
                record.breaks(other, now)
            return ""
        (record.bulk if bulk else record.small).note(other, now, failed=True)
        failures = record.bulk.failures + record.small.failures
        if failures < FAILURES or now < record.left_until or not (record.bulk.fail_most() or record.small.fail_most()):
            return ""
        record.left_until = now + LEFT_S
        return f"{failures} of its circuits failed in {WINDOW_S / 60:.0f} minutes, the last: {why}"

    def gone(self, relay: PeerId, now: float) -> None:
        """Note that a relay is not there: our own call to it broke off, or nobody answers at its address."""
        record = self._of(relay, now)
        if now >= record.away_until:
            record.gone_at.append(now)
            record.away_until = now + min(AWAY_S * 2.0 ** (len(record.gone_at) - 1), WINDOW_S)

    def broke_by(self, other: PeerId, since: float) -> PeerId | None:
        """Return a relay that was gone in the middle of a transfer with a peer since then. None: there is none."""
        fallen = (relay for relay, record in self._records.items() if record.broken.get(other, -math.inf) >= since)
        return next(fallen, None)

    def is_left(self, relay: PeerId, now: float) -> bool:
        """Return whether the relay is left now."""
        record = self._records.get(relay)
        return record is not None and now < record.left_until

    def order(self, relays: list[PeerId], now: float) -> list[PeerId]:
        """Return these relays without those that are left or away, or all where nothing else remains."""
        kept = [relay for relay in relays if not self.is_left(relay, now)] or relays
        return [relay for relay in kept if not self.is_away(relay, now)] or kept

    def is_away(self, relay: PeerId, now: float) -> bool:
        """Return whether the relay was found gone, and is not likely to be back yet."""
        record = self._records.get(relay)
        return record is not None and now < record.away_until

    def _of(self, relay: PeerId, now: float) -> _Record:
        if relay not in self._records and len(self._records) >= MAX_RELAYS_KNOWN:
            del self._records[next(iter(self._records))]
        record = self._records.setdefault(relay, _Record())
        for ends in (record.bulk, record.small):
            ends.forget(now - WINDOW_S)
        while record.gone_at and record.gone_at[0] < now - WINDOW_S:
            record.gone_at.popleft()
        return record
