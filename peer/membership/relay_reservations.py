"""The reservations of a closed peer at relays, over which others can call it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from peer.aio.events import Signal
from peer.codes import Code
from peer.errors import ExchangeError, PartnerRefused
from peer.observe import events
from peer.observe.status.value import RelayPlace
from peer.ports.clock import Clock
from peer.protocol.messages import MAX_RELAYS, PeerId, PeerRecord, Reach, RelayAddress, RelayAttestation
from peer.protocol.relay.testimony import RelayFault
from peer.protocol.swarm.relay_choice import HeldRelay, RelayCandidate, RelayMemory, choose_relays

LOOK_EVERY_S = 5.0
"""Seconds between two checks while reservations are missing."""
SETTLED_EVERY_S = 30.0
"""As `LOOK_EVERY_S`, while none is missing. A relay that died is replaced at once."""


RETURN_S = 10.0
"""Seconds after which a relay that ended our reservation is asked again. A daemon restarts within that time."""
SILENT_S = 30.0
"""As `RETURN_S`, for a relay that did not answer at all."""


class Granted(Protocol):
    """Called with the terms of a reservation when the relay grants it, and when they change."""

    def __call__(self, rate: float, word: RelayAttestation | None = None) -> None:
        """`rate`: the relay's cap in bytes per second. `word`: the relay's signed statement about the address from
        which we call; None: unchanged."""


class HoldsReservations(Protocol):
    """The part of the transport that this module needs."""

    async def hold_reservation(self, relay: PeerRecord, granted: Granted) -> None:
        """Hold a reservation at a relay until it ends, then raise. `granted` is called with its terms."""


@dataclass(slots=True)
class _Place:
    relay: RelayCandidate
    asked_at: float
    task: asyncio.Task[None]
    rate: float = 0.0
    """Bytes per second that the relay forwards; 0: the relay has not answered yet."""
    given_at: float = 0.0
    address: RelayAddress | None = None
    """The relay as our record names it, with its signed statement about our address; None: the relay has not answered
    yet."""
    left_reason: str = ""
    """Why the relay is to be left, if the journal has the reason already; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySetting:
    """What the choice of relays depends on."""

    me: PeerId
    closed: Callable[[], bool]
    """Returns whether others have found that they cannot dial us."""
    near: Callable[[], Container[PeerId]] = frozenset
    """Returns the peers in our own network, which are as unreachable from outside as we are."""
    nodes: Container[PeerId] = frozenset()
    """The operator's nodes that our ticket names."""
    emit: Callable[[events.Event], None] = lambda event: None
    changed: Callable[[], None] = lambda: None
    """Called when our record has to name other relays."""


@dataclass(slots=True)
class RelayReservations:
    """Reserves places at relays while other peers cannot dial this peer, and gives them back once they can."""

    transport: HoldsReservations
    clock: Clock
    rng: random.Random
    setting: RelaySetting
    memory: RelayMemory = field(default_factory=RelayMemory)
    _places: dict[PeerId, _Place] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Calls to relays, including those that are ending."""
    _wake: Signal = field(default_factory=Signal)

    def relays(self) -> tuple[RelayAddress, ...]:
        """Return the relays with a granted reservation, for our record."""
        return tuple(place.address for place in self._places.values() if place.address is not None and place.rate > 0)

    def rate(self) -> float:
        """Return the bytes per second that our best relay forwards; 0: there is none."""
        return max((place.rate for place in self._places.values()), default=0.0)

    def report(self) -> tuple[RelayPlace, ...]:
        """Return the reservations for `peer status`."""
        return tuple(RelayPlace(peer, place.relay.address.endpoint, place.rate) for peer, place in self._places.items())

    def leave(self, relay: PeerId, fault: RelayFault) -> None:
        """Leave a relay that failed us, and avoid it for a while.

        If it is the last relay with a granted reservation, it stays until there is another one: the failure may have
        been that of the peers that we called over it, and without a relay no peer could call us."""
        why = fault.why
        self.memory.failed(relay, why, self.clock.now())
        self.setting.emit(events.RelayLeft(relay=relay, reason=why, code=fault.code))
        if (place := self._places.get(relay)) is not None:
            place.left_reason = why
            if not self._is_last(place):
                self._give_back(relay, why, fault.code)
        self._wake.set()

    async def run(self, known: Callable[[], Mapping[PeerId, PeerRecord]]) -> None:
        """Keep reservations until cancelled. `known`: returns the live records."""
        try:
            while True:
                if self.setting.closed():
                    self._choose(known().values())
                else:
                    for relay in list(self._places):
                        self._give_back(relay, "others can dial us now", Code.OPEN)
                await self._wake.wait_for(LOOK_EVERY_S if len(self._places) < MAX_RELAYS else SETTLED_EVERY_S)
                self._wake.clear()
        finally:
            self._places.clear()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _choose(self, records: Iterable[PeerRecord]) -> None:
        now, near, known = self.clock.now(), self.setting.near(), dict[PeerId, PeerRecord]()
        for record in records:
            if record.reach is Reach.DIRECT and record.peer_id not in near and record.peer_id != self.setting.me:
                known[record.peer_id] = record
        candidates = [self._candidate(record) for record in known.values()]
        held = [HeldRelay(place.relay, place.given_at or place.asked_at) for place in self._places.values()]
        choice = choose_relays(candidates, held, self.memory, now, self.rng)
        for peer, why in choice.leave.items():
            if not self._is_last(self._places[peer]):
                self._give_back(peer, why, Code.SURPLUS)
        for address, why in choice.ask.items():
            if address.peer_id not in self._places:
                self._reserve(known[address.peer_id], self._candidate(known[address.peer_id]), why)

    def _candidate(self, record: PeerRecord) -> RelayCandidate:
        address = RelayAddress(record.peer_id, record.endpoints[0])
        return RelayCandidate(address, of_operator=record.peer_id in self.setting.nodes)

    def _reserve(self, record: PeerRecord, relay: RelayCandidate, why: str) -> None:
        task = asyncio.create_task(self._hold(record, why), name="reservation")
        self._places[record.peer_id] = _Place(relay, self.clock.now(), task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hold(self, record: PeerRecord, why: str) -> None:
        """Hold one reservation until it ends."""
        peer = record.peer_id
        place, ended = self._places[peer], "the call was broken off"

        def granted(rate: float, word: RelayAttestation | None = None) -> None:
            first, place.rate = place.rate == 0, rate
            if first and rate > 0:
                place.given_at = self.clock.now()
                self.setting.emit(events.RelayReserved(relay=peer, reason=why))
            if first or word is not None:
                place.address = replace(place.relay.address, attestation=word)
                self.setting.changed()

        try:
            await self.transport.hold_reservation(record, granted)
        except PartnerRefused as refused:
            ended = refused.reason
            self.memory.busy(peer, self.clock.now())
        except ExchangeError as error:  # it may be back soon; `leave` handles a relay that fails repeatedly
            ended = str(error)
            self.memory.busy(peer, self.clock.now(), RETURN_S if place.rate > 0 else SILENT_S)
        finally:
            self._over(peer, place, ended)

    def _over(self, peer: PeerId, place: _Place, why: str) -> None:
        """Journal that a reservation ended, unless we gave it back."""
        if self._places.get(peer) is not place:
            return
        del self._places[peer]
        if place.rate > 0:
            self.setting.emit(events.RelayLeft(relay=peer, reason=why, code=Code.ENDED))
            self.setting.changed()
        self._wake.set()

    def _is_last(self, place: _Place) -> bool:
        """Return whether this is the only granted reservation."""
        return [other for other in self._places.values() if other.rate > 0] == [place]

    def _give_back(self, relay: PeerId, why: str, code: Code) -> None:
        """Give a reservation back, and journal the reason."""
        place = self._places.pop(relay)
        place.task.cancel()
        if place.rate > 0:
            if place.left_reason != why:
                self.setting.emit(events.RelayLeft(relay=relay, reason=why, code=code))
            self.setting.changed()
