"""Testimony on relays, by reachable peers: each answers over another path, and did or did not over the relay.

A relay that stalls or garbles cannot be told from a peer that is gone by looking at the relay alone. A peer that
answers elsewhere at the same time is not gone. So it testifies against the relay, and those that answer over the relay
since then testify for it. A relay is left when more testify against it than for it. Transfers and small calls count
apart, as a relay may spoil only what is large.

A peer can lie too: it falls silent over one relay whenever it likes. So the word of one peer alone counts against one
relay within `WINDOW_S`, and only `LONE` relays are left on the word of one peer, whoever it is.

A relay on a slow line answers late itself. What it passes on may take longer by as much, so it is no relay that
delays. The module is pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from peer.codes import Code
from peer.protocol.messages import PeerId

T = TypeVar("T")

WINDOW_S = 600.0
"""Seconds for which testimony counts."""
LONE = 2
"""Relays that are left within `WINDOW_S` on the word of one peer alone."""
MAX_RELAYS_TRIED = 64
MAX_WITNESSES = 64
"""Peers whose testimony on one relay is kept, for and against."""
TIMES = 3.0
"""A peer may take so many times as long over a relay as it took over another path."""
TRIPS = 6.0
"""Round trips to the relay that a new circuit and its TLS handshake take, at most."""
PROMPT_S = 0.5
"""A relay that answers us within so many seconds is not slow itself."""
MOST_PATIENCE_S = 12.0
"""Seconds for which a relay is waited for, however slow it is."""


@dataclass(frozen=True, slots=True)
class RelayFault:
    """Why a relay is left, or what it did once. `code` is stable, and `why` is for a person."""

    code: Code
    why: str


def patience_s(slow_s: float, asked_s: float | None, elsewhere_s: float | None) -> float:
    """Return the seconds in which a peer has to answer over a new circuit.

    `slow_s`: over a relay with a quick line. `asked_s`: in which the relay itself answered just now. `elsewhere_s`: in
    which the peer answered over another path. None: it has not yet."""
    may_s = max(slow_s + TRIPS * (asked_s or 0.0), TIMES * (elsewhere_s or 0.0))
    return min(may_s, max(slow_s, MOST_PATIENCE_S))


def fault_of(asked_s: float, waited_s: float, *, ended: bool) -> RelayFault:
    """Return the fault that a relay shows when a reachable peer did not answer over it.

    `asked_s`: seconds in which the relay itself answered. `waited_s`: for which the peer was waited for. `ended`: the
    circuit ended before that."""
    if ended:
        return RelayFault(
            Code.BROKEN, "a circuit over it ended before the peer answered, which is there by another path"
        )
    late = f"a peer did not answer over it within {waited_s:.1f} s, and did so by another path"
    if asked_s <= PROMPT_S:
        return RelayFault(Code.LATE, f"{late}; the relay itself answered within {asked_s:.1f} s")
    return RelayFault(Code.SLOW, f"{late}; the relay itself took {asked_s:.1f} s")


@dataclass(slots=True)
class _Words:
    against: OrderedDict[PeerId, tuple[float, RelayFault]] = field(default_factory=OrderedDict)
    behind: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """Those for it, since the first that is against it."""

    def forget(self, before: float) -> None:
        while self.against and next(iter(self.against.values()))[0] < before:
            self.against.popitem(last=False)
        while self.behind and (not self.against or next(iter(self.behind.values())) < before):
            self.behind.popitem(last=False)


class RelayWitnesses:
    """What peers testify on each relay. `now`: seconds of one clock."""

    def __init__(self) -> None:
        self._words: OrderedDict[tuple[PeerId, bool], _Words] = OrderedDict()
        self._lone: OrderedDict[PeerId, float] = OrderedDict()
        """The peers on whose word alone a relay was left, and when."""

    def against(self, relay: PeerId, witness: PeerId, fault: RelayFault, now: float, *, bulk: bool) -> None:
        """Note that a relay did not reach a reachable peer, or that a transfer with that peer broke there."""
        words = self._words.setdefault((relay, bulk), _Words())
        self._words.move_to_end((relay, bulk))
        words.behind.pop(witness, None)
        _put(words.against, witness, (now, fault))
        while len(self._words) > MAX_RELAYS_TRIED:
            self._words.popitem(last=False)

    def behind(self, relay: PeerId, witness: PeerId, now: float, *, bulk: bool) -> None:
        """Note that a peer answered over a relay, or that a transfer with it was completed there."""
        if (words := self._words.get((relay, bulk))) is None:
            return
        words.against.pop(witness, None)
        _put(words.behind, witness, now)
        words.forget(now - WINDOW_S)

    def verdict(self, relay: PeerId, now: float) -> RelayFault | None:
        """Return why the relay is to be left. None: there is not enough against it."""
        for bulk in (True, False):
            if (words := self._words.get((relay, bulk))) is None:
                continue
            words.forget(now - WINDOW_S)
            against, behind = len(words.against), len(words.behind)
            if against <= behind or (against == 1 and not self._believed(next(iter(words.against)), now)):
                continue
            fault = next(reversed(words.against.values()))[1]
            return RelayFault(fault.code, f"{fault.why} ({against} of {against + behind} peers found so)")
        return None

    def _believed(self, witness: PeerId, now: float) -> bool:
        """Return whether a relay may be left on the word of this peer alone, and note it."""
        while self._lone and next(iter(self._lone.values())) < now - WINDOW_S:
            self._lone.popitem(last=False)
        if witness in self._lone or len(self._lone) >= LONE:
            return False
        self._lone[witness] = now
        return True


def _put(kept: OrderedDict[PeerId, T], witness: PeerId, value: T) -> None:
    kept[witness] = value
    kept.move_to_end(witness)
    if len(kept) > MAX_WITNESSES:
        kept.popitem(last=False)
