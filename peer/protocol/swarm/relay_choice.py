"""The choice of relays at which a closed peer has reservations.

A closed peer can be called only while one of its relays works. So it has several, on different hosts, and if possible
in different address blocks, so that they do not fail together. One is a node of the operator if there is any, because
its attestation of our address counts everywhere (`peer.protocol.swarm.relay_word`).

A relay that failed or stalled is left and avoided for a while, longer each time. A relay that answered `busy` is not
asked for a while. If all known relays have failed, they are asked again soon: most often our own line was down, or the
relay has just restarted.

A relay that works is kept. Only a much better one replaces the worst, and seldom: the worst is given up once the better
one has granted a reservation. Ties are broken at random, so that peers spread over the relays. The module is pure:
`now` (in seconds) and `rng` are arguments."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from peer.protocol.endpoints import block_of, host_of
from peer.protocol.messages import MAX_RELAYS, PeerId, RelayAddress

SHUNNED_S = 300.0
"""Seconds for which a relay is avoided after its first failure. Each further one within `FORGIVEN_S` doubles it."""
MOST_SHUNNED_S = 3600.0
AGAIN_S = 15.0
"""Seconds after which a relay that failed is asked again if there is no other."""
FORGIVEN_S = 7200.0
"""Seconds without a failure after which earlier failures are forgotten."""
BUSY_S = 60.0
"""Seconds for which a relay that answered `busy` is not asked again."""
SETTLED_S = 600.0
"""Minimum age of the youngest reservation, in seconds, before a better relay is searched."""
MUCH = 4.0
"""A relay that is faster by this factor is much better."""
NOMINAL_BYTES = 2**18
"""Relays are compared by their time for this many bytes."""
USUAL_TRIP_S = 0.1
"""Assumed round trip in seconds if it was not measured."""
LEAST_OFFERED = 64_000.0
"""Bytes per second that every relay offers (the minimum of `--relay`)."""
MAX_REMEMBERED = 256
"""Maximum relays whose failures are remembered."""


@dataclass(frozen=True, slots=True)
class RelayCandidate:
    """A relay that may be asked for a reservation, or that has given one."""

    address: RelayAddress
    round_trip_s: float | None = None
    """None: not measured."""
    offered: float | None = None
    """Bytes per second that it offers one more peer, according to the relay. None: not known."""
    of_operator: bool = False
    """Whether it is a node of the operator."""

    @property
    def peer_id(self) -> PeerId:
        return self.address.peer_id

    @property
    def seconds(self) -> float:
        """Estimated seconds for `NOMINAL_BYTES`, including a round trip."""
        trip_s = USUAL_TRIP_S if self.round_trip_s is None else self.round_trip_s
        offered = LEAST_OFFERED if self.offered is None else self.offered
        return trip_s + NOMINAL_BYTES / max(offered, 1.0)


@dataclass(frozen=True, slots=True)
class HeldRelay:
    """A reservation at a relay."""

    relay: RelayCandidate
    since: float
    """Time of the reservation, in seconds."""


@dataclass(frozen=True, slots=True)
class RelayChoice:
    """The reservations to keep, request and give up now, with reasons for people to read."""

    keep: tuple[PeerId, ...]
    ask: Mapping[RelayAddress, str]
    """Relays to ask for a reservation, best first, with the reason."""
    leave: Mapping[PeerId, str]
    """Relays whose reservations are given up, with the reason."""


class RelayMemory:
    """The relays that failed or were busy."""

    def __init__(self) -> None:
        self._failures: OrderedDict[PeerId, tuple[int, float, str]] = OrderedDict()
        """Number of consecutive failures, time of the last one, and its reason."""
        self._busy_until: OrderedDict[PeerId, float] = OrderedDict()

    def failed(self, peer: PeerId, why: str, now: float) -> None:
        """Record that a relay broke off, stalled, or corrupted what it forwarded."""
        times, at, _ = self._failures.pop(peer, (0, now, ""))
        times = 0 if now - at > FORGIVEN_S else times
        self._failures[peer] = times + 1, now, why
        if len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)

    def busy(self, peer: PeerId, now: float, for_s: float = BUSY_S) -> None:
        """Record that a relay has no place now. `for_s`: seconds, according to the relay."""
        self._busy_until.pop(peer, None)
        self._busy_until[peer] = now + min(max(for_s, 0.0), MOST_SHUNNED_S)
        if len(self._busy_until) > MAX_REMEMBERED:
            self._busy_until.popitem(last=False)

    def shunned(self, peer: PeerId, now: float, since: float = -math.inf) -> str:
        """Return why a relay is avoided; empty: it is not, or its last failure was before `since`."""
        times, at, why = self._failures.get(peer, (0, 0.0, ""))
        for_s = min(SHUNNED_S * 2 ** max(0, times - 1), MOST_SHUNNED_S)
        return why if times and at >= since and now - at < for_s else ""

    def avoid_reason(self, peer: PeerId, now: float, *, last_resort: bool = False) -> str:
        """Return why a relay must not be asked now; empty: it may. `last_resort`: there is no other relay."""
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
    """Decide which reservations to keep, to request and to give up. `candidates`: directly callable peers of the run;
    those in `held` may be among them."""
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
    """Return the candidates that may be asked, sorted by peer id."""
    have = {one.relay.peer_id for one in held}
    found = {one.peer_id: one for one in candidates if one.peer_id not in have}
    return [found[peer] for peer in sorted(found) if not memory.avoid_reason(peer, now, last_resort=last_resort)]


def _best_beside(chosen: Collection[RelayCandidate], free: Iterable[RelayCandidate]) -> RelayCandidate | None:
    """Return the best relay whose host differs from those of the chosen ones."""
    hosts = {host_of(one.address.endpoint) for one in chosen}
    others = [one for one in free if host_of(one.address.endpoint) not in hosts]
    return min(others, key=lambda one: _rank(one, chosen), default=None)


def _rank(one: RelayCandidate, beside: Collection[RelayCandidate]) -> tuple[bool, bool, int]:
    """Return the sort key of a relay, best first: a node of the operator if there is none yet, another address block,
    speed."""
    return *_missed(one, beside), math.floor(math.log2(one.seconds))


def _missed(one: RelayCandidate, beside: Collection[RelayCandidate]) -> tuple[bool, bool]:
    """Return how little a relay adds to the relays in `beside`: whether it does not add a first node of the operator to
    them, and whether it shares an address block with one of them."""
    fills = one.of_operator and not any(other.of_operator for other in beside)
    return not fills, block_of(one.address.endpoint) in {block_of(other.address.endpoint) for other in beside}


def _worst(relays: list[RelayCandidate]) -> RelayCandidate:
    """Return the relay that would be missed least. Ties: the last in the list, which was reserved last."""

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
    """Return why a relay is worth a change; empty: it is not. `others`: the relays that stay."""
    new, old = _missed(better, others), _missed(worst, others)
    if new < old:
        return _why(better, others)
    if new == old and better.seconds * MUCH < worst.seconds:
        return f"{worst.seconds / better.seconds:.0f} times as fast as the slowest of ours"
    return ""
