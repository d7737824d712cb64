"""The standing of relays: which of them failed us lately, and is left.

A relay can stall, drop or garble what it passes, and so can the peer at the other end. So a single failure proves
nothing, and many with one peer prove no more than two. A relay is left for some minutes when it failed twice, and with
as many peers as it worked with. Small calls and transfers count apart, as a relay may lose only what is large.

A relay that is gone breaks all that it carries, and lies about nothing. What broke just then is no failure of it, nor
of the peers at the other ends. It is put aside until it is likely to be back. Each time within `WINDOW_S` that is twice
as long, so a relay that only plays dead is soon hardly used.

The testimony of reachable peers counts at once (`peer.protocol.relay.testimony`). The module is pure."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from peer.codes import Code
from peer.protocol.messages import PeerId
from peer.protocol.relay.testimony import RelayFault, RelayWitnesses

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
CUTS = 2
"""Streams of one transfer that broke over a relay, after which the transfer goes on over others first."""
CUT_S = 120.0
"""Seconds for which a transfer that broke is remembered. If it is completed over another path by then, the relay is to
blame."""
MAX_KEPT = 16
"""Failures and successes kept of one relay with one peer."""
MAX_PEERS_KEPT = 64
"""Peers kept of one relay. The one that was met least lately is forgotten first."""
MAX_RELAYS_KNOWN = 256


@dataclass(slots=True)
class _CircuitOutcomes:
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
    bulk: _CircuitOutcomes = field(default_factory=_CircuitOutcomes)
    small: _CircuitOutcomes = field(default_factory=_CircuitOutcomes)
    left_until: float = 0.0
    gone_at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    """The moments within `WINDOW_S` at which it was found gone."""
    away_until: float = -math.inf
    broken: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """When a transfer with a peer last broke as the relay was gone."""
    cuts: OrderedDict[PeerId, deque[float]] = field(default_factory=OrderedDict)
    """When streams of a transfer with a peer broke, since the last that was completed."""

    def fell(self, at: float) -> bool:
        """Return whether what broke then broke as the relay was gone. Later it counts, though the relay is still put
        aside: it is used where nothing else remains."""
        return bool(self.gone_at) and self.gone_at[-1] - TOGETHER_S <= at < self.gone_at[-1] + AWAY_S

    def breaks(self, other: PeerId, at: float) -> None:
        self.broken[other] = at
        self.broken.move_to_end(other)
        if len(self.broken) > MAX_PEERS_KEPT:
            self.broken.popitem(last=False)

    def cut(self, other: PeerId, at: float) -> None:
        self.cuts.setdefault(other, deque(maxlen=CUTS)).append(at)
        self.cuts.move_to_end(other)
        if len(self.cuts) > MAX_PEERS_KEPT:
            self.cuts.popitem(last=False)

    def is_cut(self, other: PeerId, now: float) -> bool:
        """Return whether the transfer under way with a peer broke over it as often as that is to be."""
        at = self.cuts.get(other)
        return at is not None and len(at) == CUTS and at[0] >= now - CUT_S


class RelayStanding:
    """What happened on circuits of each relay. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._records: dict[PeerId, _Record] = {}
        self._witnesses = RelayWitnesses()

    def worked(self, relay: PeerId, other: PeerId, now: float, *, bulk: bool) -> None:
        """Note that a circuit to a peer carried a whole transfer (`bulk`), or a small call and its answer."""
        record = self._of(relay, now)
        (record.bulk if bulk else record.small).note(other, now, failed=False)
        self._witnesses.behind(relay, other, now, bulk=bulk)

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault, now: float, *, bulk: bool) -> RelayFault | None:
        """Note that a circuit to a peer failed. Return why the relay is left from now on. None: it is not, or was left
        before."""
        record = self._of(relay, now)
        if record.fell(now):
            if bulk:
                record.breaks(other, now)
            return None
        (record.bulk if bulk else record.small).note(other, now, failed=True)
        failures = record.bulk.failures + record.small.failures
        if failures < FAILURES or now < record.left_until or not (record.bulk.fail_most() or record.small.fail_most()):
            return None
        record.left_until = now + LEFT_S
        times = f"{failures} of its circuits failed in {WINDOW_S / 60:.0f} minutes, the last: {fault.why}"
        return RelayFault(fault.code, times)

    def tried(self, relay: PeerId, found: Mapping[PeerId, RelayFault | None], now: float) -> RelayFault | None:
        """Note what reachable peers testify on a relay. None: that peer answered over it. Return as `failed`."""
        if self._of(relay, now).fell(now):
            return None
        for witness, fault in found.items():
            if fault is not None:
                self._witnesses.against(relay, witness, fault, now, bulk=False)
        for witness, fault in found.items():
            if fault is None:
                self._witnesses.behind(relay, witness, now, bulk=False)
        return self._leave(relay, now)

    def cut(self, relay: PeerId, other: PeerId, now: float) -> None:
        """Note that a stream of a transfer with a peer broke over a relay."""
        self._of(relay, now).cut(other, now)

    def completed(self, other: PeerId, over: PeerId | None, now: float) -> list[tuple[PeerId, float]]:
        """Note that a transfer with a peer is complete. `over`: the relay; None: no relay carried it.

        Return the relays over which it broke before, each with the moment when it did last."""
        cut = [(relay, record) for relay, record in self._records.items() if other in record.cuts]
        blamed = [(relay, record) for relay, record in cut if relay != over and record.is_cut(other, now)]
        found = [(relay, record.cuts[other][-1]) for relay, record in blamed]
        for _, record in cut:
            del record.cuts[other]
        return found

    def outdone(self, relay: PeerId, other: PeerId, now: float) -> RelayFault | None:
        """Note that a transfer with a peer, which broke over a relay then, was completed over another path. Return as
        `failed`."""
        if self._of(relay, now).fell(now):
            return None
        why = f"a transfer broke over it {CUTS} times and was completed over another path"
        self._witnesses.against(relay, other, RelayFault(Code.BROKEN, why), now, bulk=True)
        return self._leave(relay, now)

    def _leave(self, relay: PeerId, now: float) -> RelayFault | None:
        record = self._of(relay, now)
        if now < record.left_until or (fault := self._witnesses.verdict(relay, now)) is None:
            return None
        record.left_until = now + LEFT_S
        return fault

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

    def order(self, relays: list[PeerId], now: float, to: PeerId | None = None) -> list[PeerId]:
        """Return these relays without those that are left or away, or all where nothing else remains. Those over which
        the transfer under way with `to` broke come last."""
        kept = [relay for relay in relays if not self.is_left(relay, now)] or relays
        kept = [relay for relay in kept if not self.is_away(relay, now)] or kept
        return kept if to is None else sorted(kept, key=lambda relay: self._is_cut(relay, to, now))

    def _is_cut(self, relay: PeerId, to: PeerId, now: float) -> bool:
        return (record := self._records.get(relay)) is not None and record.is_cut(to, now)

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
