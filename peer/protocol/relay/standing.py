"""Standing of relays: which of them failed lately and are avoided.

A relay can stall, drop or corrupt what it forwards, but so can the peer at the other end. So a single failure proves
nothing, and many failures with one peer prove no more than two. A relay is avoided for some minutes after at least two
failures, if it failed with at least as many peers as it worked with. Small calls and transfers are counted separately,
because a relay may only lose large ones.

A relay that disappears breaks all its circuits without any fault of its own or of the peers at the other ends. Circuits
that break at that time are not counted as failures. The relay is then away, which means that it is not used, until it
is likely to be back. This time doubles with each disappearance within `WINDOW_S`, so that a relay which disappears on
purpose is soon hardly used.

Testimony of reachable peers counts immediately (`peer.protocol.relay.testimony`). The module is pure."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from peer.codes import Code
from peer.protocol.messages import PeerId
from peer.protocol.relay.testimony import RelayFault, RelayWitnesses

WINDOW_S = 600.0
"""Seconds for which failures and successes count."""
FAILURES = 2
"""Minimum failures for avoiding a relay. One round with a broken swap has as many."""
LEFT_S = 600.0
"""Seconds for which a relay is avoided if there is another one."""
AWAY_S = 10.0
"""Seconds for which a relay that disappeared for the first time is not used. A daemon restarts within that time."""
TOGETHER_S = 2.0
"""Failures up to this many seconds before a relay was found to be gone belong to its disappearance."""
CUTS = 2
"""When this many streams of one transfer broke over a relay, the transfer prefers other relays."""
CUT_S = 120.0
"""Seconds for which a broken transfer is remembered. If it is completed over another path within that time, the relay
is to blame."""
MAX_KEPT = 16
"""Maximum failures and successes remembered for one relay with one peer."""
MAX_PEERS_KEPT = 64
"""Maximum peers remembered for one relay. The least recent is evicted."""
MAX_RELAYS_KNOWN = 256


@dataclass(slots=True)
class _CircuitOutcomes:
    """Outcomes of the circuits of one kind (bulk or small) over one relay: for each peer, the end times and whether
    each failed."""

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
        """Return whether circuits failed with at least as many peers as they worked with. Each peer counts by the
        majority of its circuits; equal numbers count as failed."""
        against = sum(2 * sum(failed for _, failed in ends) >= len(ends) for ends in self.of.values())
        return 2 * against >= len(self.of) > 0


@dataclass(slots=True)
class _Record:
    """What is remembered of one relay."""

    bulk: _CircuitOutcomes = field(default_factory=_CircuitOutcomes)
    small: _CircuitOutcomes = field(default_factory=_CircuitOutcomes)
    left_until: float = 0.0
    gone_at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    """Times within `WINDOW_S` at which the relay was found to be gone."""
    away_until: float = -math.inf
    broken: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """When a transfer with each peer last broke while the relay was gone."""
    cuts: OrderedDict[PeerId, deque[float]] = field(default_factory=OrderedDict)
    """When streams of a transfer with each peer broke, since the last completed transfer."""

    def fell(self, at: float) -> bool:
        """Return whether a failure at this time belongs to a disappearance of the relay. Later failures count although
        the relay is still away, because it is used if there is no other."""
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
        """Return whether the present transfer with a peer broke `CUTS` times over this relay."""
        at = self.cuts.get(other)
        return at is not None and len(at) == CUTS and at[0] >= now - CUT_S


class RelayStanding:
    """Outcomes of circuits over each relay. Times in seconds of any one clock."""

    def __init__(self) -> None:
        self._records: dict[PeerId, _Record] = {}
        self._witnesses = RelayWitnesses()

    def worked(self, relay: PeerId, other: PeerId, now: float, *, bulk: bool) -> None:
        """Record that a circuit to `other` carried a complete transfer (`bulk`), or a small call and its answer."""
        record = self._of(relay, now)
        (record.bulk if bulk else record.small).note(other, now, failed=False)
        self._witnesses.behind(relay, other, now, bulk=bulk)

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault, now: float, *, bulk: bool) -> RelayFault | None:
        """Record that a circuit to `other` failed. Return why the relay is avoided from now on. None: it is not, or was
        already."""
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
        """Record what reachable peers testify about a relay: None for a peer that answered over it. Return the same as
        `failed`."""
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
        """Record that a stream of a transfer with `other` broke over a relay."""
        self._of(relay, now).cut(other, now)

    def completed(self, other: PeerId, over: PeerId | None, now: float) -> list[tuple[PeerId, float]]:
        """Record that a transfer with `other` is complete. `over`: the relay that carried it; None: no relay.

        Return the relays over which it broke `CUTS` times before, each with the time of the last break."""
        cut = [(relay, record) for relay, record in self._records.items() if other in record.cuts]
        blamed = [(relay, record) for relay, record in cut if relay != over and record.is_cut(other, now)]
        found = [(relay, record.cuts[other][-1]) for relay, record in blamed]
        for _, record in cut:
            del record.cuts[other]
        return found

    def outdone(self, relay: PeerId, other: PeerId, now: float) -> RelayFault | None:
        """Record that a transfer which broke over a relay at `now` was completed over another path. Return the same as
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
        """Record that a relay has disappeared: our own call to it broke off, or nobody answers at its address."""
        record = self._of(relay, now)
        if now >= record.away_until:
            record.gone_at.append(now)
            record.away_until = now + min(AWAY_S * 2.0 ** (len(record.gone_at) - 1), WINDOW_S)

    def broke_by(self, other: PeerId, since: float) -> PeerId | None:
        """Return a relay that disappeared during a transfer with `other` at or after the time `since`. None: there is
        none."""
        fallen = (relay for relay, record in self._records.items() if record.broken.get(other, -math.inf) >= since)
        return next(fallen, None)

    def is_left(self, relay: PeerId, now: float) -> bool:
        """Return whether the relay is avoided now."""
        record = self._records.get(relay)
        return record is not None and now < record.left_until

    def order(self, relays: list[PeerId], now: float, to: PeerId | None = None) -> list[PeerId]:
        """Return these relays without those that are avoided or away, or all if no other remains. Relays over which the
        present transfer with `to` broke are last."""
        kept = [relay for relay in relays if not self.is_left(relay, now)] or relays
        kept = [relay for relay in kept if not self.is_away(relay, now)] or kept
        return kept if to is None else sorted(kept, key=lambda relay: self._is_cut(relay, to, now))

    def _is_cut(self, relay: PeerId, to: PeerId, now: float) -> bool:
        return (record := self._records.get(relay)) is not None and record.is_cut(to, now)

    def is_away(self, relay: PeerId, now: float) -> bool:
        """Return whether the relay disappeared and is not likely to be back yet."""
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
