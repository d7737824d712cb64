"""Testimony about relays: whether peers that answer over another path answer over the relay as well.

To a caller, a relay that stalls or corrupts looks the same as a peer that is gone. But a peer that answers over another
path at the same time is not gone. So this peer testifies against the relay, and peers that answer over the relay after
that testify for it. A relay is avoided if more peers testify against it than for it. Transfers and small calls are
counted separately, because a relay may only corrupt large ones.

Peers can lie too, by not answering over one relay. So the testimony of a single peer counts against only one relay
within `WINDOW_S`, and at most `LONE` relays are avoided on the testimony of single peers.

A relay on a slow line also answers our own calls slowly. The time allowed for an answer over the relay is extended
accordingly, so that a slow line is not mistaken for a relay that delays on purpose. The module is pure."""

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
"""Maximum relays that are avoided within `WINDOW_S` on the testimony of a single peer each."""
MAX_RELAYS_TRIED = 64
MAX_WITNESSES = 64
"""Maximum peers whose testimony about one relay is remembered, for and against."""
TIMES = 3.0
"""A peer may take this many times as long over a relay as over another path."""
TRIPS = 6.0
"""Maximum round trips to the relay for a new circuit and its TLS handshake."""
PROMPT_S = 0.5
"""A relay that answers us within this many seconds is not slow itself."""
MOST_PATIENCE_S = 12.0
"""Maximum seconds to wait for an answer over a slow relay."""


@dataclass(frozen=True, slots=True)
class RelayFault:
    """A fault of a relay: a single one, or the one for which it is avoided. `code` is stable, and `why` is for people
    to read."""

    code: Code
    why: str


def patience_s(slow_s: float, asked_s: float | None, elsewhere_s: float | None) -> float:
    """Return the seconds within which a peer has to answer over a new circuit.

    `slow_s`: limit for a relay with a fast line. `asked_s`: how long the relay itself took to answer just now; None: it
    has not answered. `elsewhere_s`: how long the peer took over another path; None: it has not answered."""
    may_s = max(slow_s + TRIPS * (asked_s or 0.0), TIMES * (elsewhere_s or 0.0))
    return min(may_s, max(slow_s, MOST_PATIENCE_S))


def fault_of(asked_s: float, waited_s: float, *, ended: bool) -> RelayFault:
    """Return the fault of a relay over which a reachable peer did not answer.

    `asked_s`: how long the relay itself took to answer. `waited_s`: how long we waited for the peer. `ended`: the
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
    """Testimony about one relay: the latest of each peer, with its time."""

    against: OrderedDict[PeerId, tuple[float, RelayFault]] = field(default_factory=OrderedDict)
    behind: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    """Peers that testified for it after the first testimony against it."""

    def forget(self, before: float) -> None:
        while self.against and next(iter(self.against.values()))[0] < before:
            self.against.popitem(last=False)
        while self.behind and (not self.against or next(iter(self.behind.values())) < before):
            self.behind.popitem(last=False)


class RelayWitnesses:
    """Testimony of peers about each relay. `now`: seconds of any one clock."""

    def __init__(self) -> None:
        self._words: OrderedDict[tuple[PeerId, bool], _Words] = OrderedDict()
        self._lone: OrderedDict[PeerId, float] = OrderedDict()
        """Peers on whose testimony alone a relay was avoided, and when."""

    def against(self, relay: PeerId, witness: PeerId, fault: RelayFault, now: float, *, bulk: bool) -> None:
        """Record that a relay did not reach a reachable peer, or that a transfer with that peer broke over it."""
        words = self._words.setdefault((relay, bulk), _Words())
        self._words.move_to_end((relay, bulk))
        words.behind.pop(witness, None)
        _put(words.against, witness, (now, fault))
        while len(self._words) > MAX_RELAYS_TRIED:
            self._words.popitem(last=False)

    def behind(self, relay: PeerId, witness: PeerId, now: float, *, bulk: bool) -> None:
        """Record that a peer answered over a relay, or that a transfer with the peer was completed over the relay."""
        if (words := self._words.get((relay, bulk))) is None:
            return
        words.against.pop(witness, None)
        _put(words.behind, witness, now)
        words.forget(now - WINDOW_S)

    def verdict(self, relay: PeerId, now: float) -> RelayFault | None:
        """Return why the relay has to be avoided. None: the testimony does not suffice."""
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
        """Return whether a relay may be avoided on the testimony of this peer alone, and count it if so."""
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
