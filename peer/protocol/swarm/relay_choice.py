"""Which relays a closed peer keeps reservations at.

A closed peer can be called only as long as one of its relays works. So it keeps several, of different hosts, and if it
can of different address blocks: what takes one down then leaves the others. One is a node of the operator if there is
any, because its word on our address counts everywhere (`peer.protocol.swarm.relay_word`).

A relay that failed or stalled is left and shunned for a while, longer each time. One that said `busy` is not asked for
a while. Where no other relay is to be had, one that failed is asked again soon: most often our own line was down, or it
has just restarted.

A relay that works is kept. Only a much better one takes the place of the worst, and seldom: it is asked first, and the
worst is left when there is one too many. Among equals lots decide, so that peers spread over the relays. The module is
pure: `now` and `rng` are arguments, in seconds."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from peer.protocol.endpoints import block_of, host_of
from peer.protocol.messages import MAX_RELAYS, PeerId, RelayAddress

SHUNNED_S = 300.0
"""Seconds for which a relay is shunned after its first failure. Each further one within `FORGIVEN_S` doubles it."""
MOST_SHUNNED_S = 3600.0
AGAIN_S = 15.0
"""Seconds after which a relay that failed is asked again while there is no other."""
FORGIVEN_S = 7200.0
"""Seconds without a failure after which the former ones are forgotten."""
BUSY_S = 60.0
"""Seconds for which a relay is not asked again that said `busy`."""
SETTLED_S = 600.0
"""Seconds for which the youngest reservation has been held before a better relay is looked for."""
MUCH = 4.0
"""A relay that is faster by this factor is much better."""
NOMINAL_BYTES = 2**18
"""Relays are compared by the seconds that they take for so much."""
USUAL_TRIP_S = 0.1
"""Seconds of a round trip that was not measured."""
LEAST_OFFERED = 64_000.0
"""Bytes per second that every relay offers (the least value of `--relay`)."""
MAX_REMEMBERED = 256
"""Most relays of which failures are remembered."""


@dataclass(frozen=True, slots=True)
class RelayCandidate:
    """A relay that may be asked, or that holds a reservation."""

    address: RelayAddress
    round_trip_s: float | None = None
    """None: not measured."""
    offered: float | None = None
    """Bytes per second that it offers to one more peer, as it said. None: it was not asked."""
    of_operator: bool = False
    """Whether it is a node of the operator."""

    @property
    def peer_id(self) -> PeerId:
        return self.address.peer_id

    @property
    def seconds(self) -> float:
        """How long it takes for a nominal amount."""
        trip_s = USUAL_TRIP_S if self.round_trip_s is None else self.round_trip_s
        offered = LEAST_OFFERED if self.offered is None else self.offered
        return trip_s + NOMINAL_BYTES / max(offered, 1.0)


@dataclass(frozen=True, slots=True)
class HeldRelay:
    """A reservation."""

    relay: RelayCandidate
    since: float
    """When it was given, seconds."""


@dataclass(frozen=True, slots=True)
class RelayChoice:
    """What to do now. Every decision has its reason, for a person."""

    keep: tuple[PeerId, ...]
    ask: Mapping[RelayAddress, str]
    """The relays to ask for a reservation, and why these, best first."""
    leave: Mapping[PeerId, str]
    """The relays whose reservations are given back, and why."""


class RelayMemory:
    """The relays that failed or had no place."""

    def __init__(self) -> None:
        self._failures: OrderedDict[PeerId, tuple[int, float, str]] = OrderedDict()
        """How often in a row, when last, and why."""
        self._busy_until: OrderedDict[PeerId, float] = OrderedDict()

    def failed(self, peer: PeerId, why: str, now: float) -> None:
        """Note that a relay broke off, stalled or passed on something else than it got."""
        times, at, _ = self._failures.pop(peer, (0, now, ""))
        times = 0 if now - at > FORGIVEN_S else times
        self._failures[peer] = times + 1, now, why
        if len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)

    def busy(self, peer: PeerId, now: float, for_s: float = BUSY_S) -> None:
        """Note that a relay has no place now. `for_s`: as it said."""
        self._busy_until.pop(peer, None)
        self._busy_until[peer] = now + min(max(for_s, 0.0), MOST_SHUNNED_S)
        if len(self._busy_until) > MAX_REMEMBERED:
            self._busy_until.popitem(last=False)

    def shunned(self, peer: PeerId, now: float, since: float = -math.inf) -> str:
        """Return why a relay is shunned, empty: it is not, or did not fail `since` then."""
        times, at, why = self._failures.get(peer, (0, 0.0, ""))
        for_s = min(SHUNNED_S * 2 ** max(0, times - 1), MOST_SHUNNED_S)
        return why if times and at >= since and now - at < for_s else ""

    def avoid_reason(self, peer: PeerId, now: float, *, last_resort: bool = False) -> str:
        """Return why a relay is not to be asked now, empty: it may be. `last_resort`: no other is to be had."""
        why = self.shunned(peer, now)
        if why and not (last_resort and now - self._failures[peer][1] >= AGAIN_S):
            return why
        return "it had no place" if now < self._busy_until.get(peer, 0.0) else ""


def choose_relays(
    candidates: Iterable[RelayCandidate],
    held: Collection[HeldRelay],
    memory: RelayMemory,
    now: float,
    rng: random.Random,
    wanted: int = MAX_RELAYS,
) -> RelayChoice:
    """Decide which reservations to keep, to ask for and to leave. `candidates`: directly callable peers of the run,
    with or without the held ones."""
    leave = {one.relay.peer_id: why for one in held if (why := memory.shunned(one.relay.peer_id, now, one.since))}
    kept = [one for one in held if one.relay.peer_id not in leave]
    while len(kept) > wanted:
        worst = _worst([one.relay for one in kept])
        leave[worst.peer_id] = "one too many, and the worst of them"
        kept = [one for one in kept if one.relay is not worst]
    relays = [one.relay for one in kept]
    found = list(candidates)
    free = _eligible(found, held, memory, now)
    if not kept and not free:
        free = _eligible(found, held, memory, now, last_resort=True)
    rng.shuffle(free)
    ask, chosen = dict[RelayAddress, str](), list(relays)
    while len(chosen) < wanted and (best := _best_beside(chosen, free)):
        ask[best.address] = _why(best, chosen)
        chosen.append(best)
    if relays and len(relays) == wanted and now - max(one.since for one in kept) >= SETTLED_S:
        worst = _worst(relays)
        others = [one for one in relays if one is not worst]
        better = _best_beside(others, free)
        if better is not None and (why := _why_better(better, worst, others)):
            ask[better.address] = why
    return RelayChoice(tuple(one.peer_id for one in relays), ask, leave)


def _eligible(
    candidates: Iterable[RelayCandidate],
    held: Collection[HeldRelay],
    memory: RelayMemory,
    now: float,
    *,
    last_resort: bool = False,
) -> list[RelayCandidate]:
    """Return those that may be asked, in an order that says nothing."""
    have = {one.relay.peer_id for one in held}
    found = {one.peer_id: one for one in candidates if one.peer_id not in have}
    return [found[peer] for peer in sorted(found) if not memory.avoid_reason(peer, now, last_resort=last_resort)]


def _best_beside(chosen: Collection[RelayCandidate], free: Iterable[RelayCandidate]) -> RelayCandidate | None:
    """Return the best one on a host that none of the chosen is on."""
    hosts = {host_of(one.address.endpoint) for one in chosen}
    others = [one for one in free if host_of(one.address.endpoint) not in hosts]
    return min(others, key=lambda one: _rank(one, chosen), default=None)


def _rank(one: RelayCandidate, beside: Collection[RelayCandidate]) -> tuple[bool, bool, int]:
    """Order relays, the best first: the operator's where there is none yet, one of another block, then the faster."""
    return *_missed(one, beside), math.floor(math.log2(one.seconds))


def _missed(one: RelayCandidate, beside: Collection[RelayCandidate]) -> tuple[bool, bool]:
    """Whether others are nodes of the operator as well as this one, and whether one of them is in its address block."""
    fills = one.of_operator and not any(other.of_operator for other in beside)
    return not fills, block_of(one.address.endpoint) in {block_of(other.address.endpoint) for other in beside}


def _worst(relays: list[RelayCandidate]) -> RelayCandidate:
    """Return the one without which the others are best; of equals the last, for it came last."""

    def badness(place: int) -> tuple[bool, bool, float, int]:
        one = relays[place]
        return *_missed(one, [other for other in relays if other is not one]), one.seconds, place

    return relays[max(range(len(relays)), key=badness)]


def _why(one: RelayCandidate, beside: Collection[RelayCandidate]) -> str:
    no_node, shares = _missed(one, beside)
    if not no_node:
        return "a node of the operator"
    return "another host" if shares else "another host and address block"


def _why_better(better: RelayCandidate, worst: RelayCandidate, others: Collection[RelayCandidate]) -> str:
    """Return why a relay is worth a change, empty: it is not. `others`: those that stay."""
    new, old = _missed(better, others), _missed(worst, others)
    if new < old:
        return _why(better, others)
    if new == old and better.seconds * MUCH < worst.seconds:
        return f"{worst.seconds / better.seconds:.0f} times as fast as the slowest of ours"
    return ""
