"""The failure detector, following SWIM (Das, Gupta, Motivala 2002): a peer is first suspected, and out only after other
peers confirm it. The module is pure: the caller reports contacts and failures, and reads which checks to make and which
peers are out.

A peer that does not answer is **suspected**, and remains a candidate. Other peers (witnesses) are asked whether they
reach it:

* If one of them does, or had contact with it within `HEARD_S`, the peer is alive, and our link to it is the problem.
* If a later record of it appears, it is alive.
* If `WITNESSES` of them do not (or all that there are), and for `confirm_s` no record of it appeared while records of
  others did, it is **out**: no candidate, until it makes contact again.

So three causes never make a peer out: a bad link of ours, because the witnesses answer us over it; a directory that is
not updated, because then no records of others appear either; and a link of the peer so full that calls over it time
out, because its records and exchanges with others still arrive. A peer that announces itself every third of a record's
lifetime is never out while any live peer exchanges with it (`confirm_after`)."""

from __future__ import annotations

import enum
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from peer.protocol.messages import PeerId

WITNESSES = 3
"""Number of witnesses that must fail to reach a suspect before it is out."""
CHECK_EVERY_S = 2.0
"""Minimum seconds between two checks of one suspect."""
RECHECK_S = 30.0
"""Minimum seconds between two checks of a peer that is out."""
HEARD_S = 20.0
"""A witness that had contact with a peer within this many seconds vouches for it without calling it."""
FRESH_S = 3.0
"""A call that fails within this many seconds after a contact is ignored: the call was lost, not the peer."""
VOUCHED_S = 30.0
"""Seconds for which a peer that a witness reaches is not suspected again."""
DOUBT_S = 60.0
"""While any peer is suspected but not out, the directory is read at least every this many seconds."""
MAX_CASES = 256
NOBODY: frozenset[PeerId] = frozenset()
MAX_HEARD = 4096


class Dated(Protocol):
    """The part of a record that the failure detector uses."""

    @property
    def issued_at(self) -> float: ...


_issued_at: Callable[[Dated], float] = attrgetter("issued_at")


class LivenessChange(enum.StrEnum):
    """Changes of a peer's liveness."""

    SUSPECTED = "suspected"
    OUT = "out"
    BACK = "back"
    """The peer was suspected or out, and made contact again."""
    VOUCHED = "vouched"
    """The peer was suspected, and others reach it: our own link to it is the problem."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a peer's liveness, for the journal."""

    peer: PeerId
    change: LivenessChange
    reason: str
    """The reason, as a sentence."""
    seconds: float
    """Seconds since the peer was first suspected."""


@dataclass(frozen=True, slots=True)
class Check:
    """A request to make: ask witness `by` whether it reaches `about`."""

    by: PeerId
    about: PeerId


@dataclass(slots=True)
class Case:
    """A peer that does not answer us."""

    since: float
    why: str
    out: bool = False
    asked: dict[PeerId, float] = field(default_factory=dict)
    """Witnesses that were asked, and when."""
    denied: dict[PeerId, str] = field(default_factory=dict)
    """Witnesses that do not reach it either, and why."""

    def confirm(self) -> None:
        """Mark the peer as out."""
        self.out = True

    def asked_at(self) -> float:
        return max(self.asked.values(), default=float("-inf"))


def confirm_after(lifetime_s: float, look_every_s: float) -> float:
    """Return the seconds without a record after which a live peer would certainly have been seen.

    A live peer announces itself every third of a record's lifetime, this peer reads the directory at least every 1.2
    times `look_every_s`, and the directory itself takes some time."""
    return lifetime_s / 3 + 1.5 * look_every_s + 5.0


class Membership:
    """One peer's opinion about the liveness of all others. `now`: the swarm's common clock in seconds, which
    `issued_at` of records uses too."""

    def __init__(self, confirm_s: float) -> None:
        self.confirm_s = confirm_s
        self._cases: OrderedDict[PeerId, Case] = OrderedDict()
        self._heard: OrderedDict[PeerId, float] = OrderedDict()
        self._vouched: dict[PeerId, float] = {}
        self._latest_record = float("-inf")

    # -- events ------------------------------------------------------------------------------------------------------

    def on_contact(self, peer: PeerId, now: float, what: str = "it answered") -> list[Changed]:
        """Record a call, an answer or an exchange of this peer."""
        self._heard[peer] = now
        self._heard.move_to_end(peer)
        while len(self._heard) > MAX_HEARD:
            self._heard.popitem(last=False)
        return self._close(peer, LivenessChange.BACK, what, now)

    def failed(self, peer: PeerId, now: float, why: str) -> list[Changed]:
        """Record that this peer did not answer a call."""
        if peer in self._cases or now - self._vouched.get(peer, float("-inf")) < VOUCHED_S:
            return []
        if now - self._heard.get(peer, float("-inf")) < FRESH_S:
            return []
        self._cases[peer] = Case(now, why)
        while len(self._cases) > MAX_CASES:
            self._cases.popitem(last=False)
        return [Changed(peer, LivenessChange.SUSPECTED, why, 0.0)]

    def seen(self, records: Mapping[PeerId, Dated], now: float) -> list[Changed]:
        """Process the records of a read of the directory. Suspects without a record are removed: their records have
        expired."""
        self._vouched = {peer: at for peer, at in self._vouched.items() if now - at < VOUCHED_S}
        if not self._cases:
            return []  # `_latest_record` matters only for open cases: older records confirm no later case
        latest = max(map(_issued_at, records.values()), default=float("-inf"))
        self._latest_record = max(self._latest_record, min(latest, now))
        changed = []
        for peer, case in list(self._cases.items()):
            if peer not in records:
                del self._cases[peer]
            elif records[peer].issued_at > case.since:
                changed += self._close(peer, LivenessChange.BACK, "it announced itself again", now)
        return changed

    def on_witness_answer(self, by: PeerId, about: PeerId, reaches: bool, reason: str, now: float) -> list[Changed]:
        """Process a witness's answer."""
        case = self._cases.get(about)
        if case is None:
            return []
        if reaches:
            self._vouched[about] = now
            change = LivenessChange.BACK if case.out else LivenessChange.VOUCHED
            return self._close(about, change, f"{by} reaches it: {reason}", now)
        case.denied[by] = reason
        return []

    # -- actions -----------------------------------------------------------------------------------------------------

    def checks(self, able: Collection[PeerId], now: float, rng: random.Random) -> tuple[list[Check], list[Changed]]:
        """Return the checks to make now, and the peers that are out from now on. `able`: live peers that can be
        called."""
        checks, changed = [], []
        for peer, case in self._cases.items():
            witnesses = [p for p in able if p != peer and p not in self._cases]
            if not case.out and self._is_out(case, witnesses, now):
                case.confirm()
                changed.append(Changed(peer, LivenessChange.OUT, _verdict(case), now - case.since))
            if now - case.asked_at() >= (RECHECK_S if case.out else CHECK_EVERY_S) and witnesses:
                by = min(witnesses, key=lambda p: (case.asked.get(p, float("-inf")), rng.random()))
                if case.out or now - case.asked.get(by, float("-inf")) >= RECHECK_S:
                    case.asked[by] = now
                    checks.append(Check(by, peer))
        return checks, changed

    def _is_out(self, case: Case, witnesses: Collection[PeerId], now: float) -> bool:
        silent = now - case.since >= self.confirm_s and self._latest_record > case.since
        return silent and len(case.denied) >= max(1, min(WITNESSES, len(witnesses)))

    # -- queries -----------------------------------------------------------------------------------------------------

    def out(self, peer: PeerId) -> bool:
        """Return whether the peer is out."""
        case = self._cases.get(peer)
        return case is not None and case.out

    def peers_out(self) -> frozenset[PeerId]:
        """Return all peers that are out."""
        return frozenset(peer for peer, case in self._cases.items() if case.out) if self._cases else NOBODY

    def contact_age_s(self, peer: PeerId, now: float) -> float | None:
        """Return the seconds since the last call, answer or exchange of this peer. None: never, or long ago."""
        at = self._heard.get(peer)
        return None if at is None else max(0.0, now - at)

    def isolated_s(self, now: float) -> float | None:
        """Return for how many seconds several peers have not answered and no peer made contact. Then our own connection
        is most likely down. None: it is not."""
        if len(self._cases) < 2:
            return None
        first = min(case.since for case in self._cases.values())
        last = max(self._heard.values(), default=float("-inf"))
        return now - first if last < first else None

    def suspects(self) -> bool:
        """Return whether any peer is suspected or out."""
        return bool(self._cases)

    def doubts(self) -> bool:
        """Return whether any peer is suspected and not out."""
        return any(not case.out for case in self._cases.values())

    def cases(self) -> dict[PeerId, Case]:
        """Return the suspected peers and those that are out, longest first. The cases must not be modified."""
        return dict(sorted(self._cases.items(), key=lambda item: item[1].since))

    def forget(self) -> None:
        """Remove all cases after a sleep of this machine, which may have caused the failures."""
        self._cases.clear()
        self._vouched.clear()

    def _close(self, peer: PeerId, change: LivenessChange, reason: str, now: float) -> list[Changed]:
        case = self._cases.pop(peer, None)
        return [] if case is None else [Changed(peer, change, reason, max(0.0, now - case.since))]


def _verdict(case: Case) -> str:
    by = ", ".join(peer[-6:] for peer in list(case.denied)[:WITNESSES])
    return f"{case.why}; {len(case.denied)} others do not reach it either ({by}), and no later record of it came"
