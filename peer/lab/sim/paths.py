"""Paths between simulated peers: which peers can be dialled, which closed homes can punch holes, and which relays carry
the bytes of others.

A relay has a cap in bytes per second. All transfers over it share the cap, and each relayed byte counts once. The
caller picks the least busy of the relays that hold a reservation for the called peer. A connection stays at its relay
as long as a transfer uses it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from peer.errors import PartnerLost, RelayBusy
from peer.lab.sim.bandwidth import Course, Pipe
from peer.lab.sim.nat import Nat, can_punch
from peer.protocol.messages import DIRECT, PathKind, PeerId, Way
from peer.protocol.relay.circuits import RESERVATIONS, RESERVED_FOR_PROVEN
from peer.protocol.swarm.relay_load import RelayLoad

PLACES = RESERVATIONS - RESERVED_FOR_PROVEN
"""Number of closed peers that can hold a reservation at one relay. The places for proven peers are left out, because no
peer is proven to a relay here."""


@dataclass(slots=True)
class _Relay:
    """The state of one relay."""

    pipe: Pipe
    load: RelayLoad
    """The connections in use over this relay."""
    reserved: dict[PeerId, Callable[[], None]] = field(default_factory=dict)
    """The closed peers that hold a reservation -> the callback that reports its end."""


@dataclass(slots=True, eq=False)
class OpenPath:
    """An open connection between two peers. `relay`: the relay that carries its bytes. None: no relay does."""

    way: Way
    relay: PeerId | None
    needs: float = 0.0
    """Bytes per second in each direction that a swap needs."""
    users: int = 0

    def used(self, more: int) -> int:
        """Add `more` users (negative: remove). Return how many are left."""
        self.users += more
        return self.users

    def stops(self, sender: PeerId, to: PeerId) -> tuple[PeerId, ...]:
        """Return the peers that the bytes pass, with both ends."""
        return (sender, to) if self.relay is None else (sender, self.relay, to)


DIALLED = OpenPath(DIRECT, None)


class Paths:
    """All connections of a network over relays, and the reservations at them."""

    def __init__(
        self,
        dialable: Callable[[PeerId], bool] = lambda peer: True,
        nats: Mapping[PeerId, Nat] | None = None,
        caps: Mapping[PeerId, float] | None = None,
        passes: Callable[[PeerId, PeerId], bool] = lambda sender, to: True,
    ) -> None:
        """dialable: whether others can open a connection to a peer at all. nats: the routers of closed peers. caps:
        bytes per second of each relay. passes: whether messages from the first peer to the second arrive now."""
        self._dialable, self._nats, self._passes = dialable, dict(nats or {}), passes
        self._relays = {peer: _Relay(Pipe(cap, peer), RelayLoad(cap)) for peer, cap in (caps or {}).items()}
        self._homes: frozenset[PeerId] = frozenset()
        self._connections: dict[tuple[PeerId, PeerId], OpenPath] = {}
        self.lines: Callable[[PeerId, PeerId], Sequence[Pipe]] = lambda one, other: ()
        """Returns the pipes between the links of two peers."""

    def put_on_one_router(self, homes: Iterable[PeerId]) -> None:
        """Put these peers into one local network: they can dial each other, even if no other peer can dial them."""
        self._homes = frozenset(homes)

    def is_open(self, peer: PeerId) -> bool:
        """Return whether every peer can open a connection to this one."""
        return peer not in self._nats and self._dialable(peer)

    @property
    def relays(self) -> tuple[PeerId, ...]:
        """The relays."""
        return tuple(self._relays)

    def busy(self, relay: PeerId) -> int:
        """Return the number of connections in use over a relay."""
        return self._relays[relay].load.swaps

    def cap(self, relay: PeerId) -> float:
        """Return the cap of a relay in bytes per second."""
        return self._relays[relay].pipe.rate

    # -- reservations ------------------------------------------------------------------------------------------------

    def reserve(self, relay: PeerId, peer: PeerId, broke: Callable[[], None]) -> bool:
        """Reserve a place at a relay for a closed peer. `broke` is called when the relay vanishes. Return False if the
        relay does not run or is full."""
        at = self._relays.get(relay)
        if at is None or (len(at.reserved) >= PLACES and peer not in at.reserved):
            return False
        at.reserved[peer] = broke
        return True

    def give_back(self, relay: PeerId, peer: PeerId) -> None:
        """End a reservation."""
        if relay in self._relays:
            self._relays[relay].reserved.pop(peer, None)

    def remove(self, peer: PeerId) -> None:
        """Remove a peer whose process is gone: end its reservations at relays and, if it is a relay, those that others
        hold there."""
        for at in self._relays.values():
            at.reserved.pop(peer, None)
        if peer in self._relays:
            reserved = self._relays[peer].reserved
            broken = list(reserved.values())
            reserved.clear()
            for tell in broken:
                tell()

    def share(self, lines: Callable[[PeerId, PeerId], Sequence[Pipe]]) -> None:
        """Set `lines`: returns the pipes between two peers, beyond their own links."""
        self.lines = lines

    # -- ways --------------------------------------------------------------------------------------------------------

    def between(self, caller: PeerId, called: PeerId, needs: float = 0.0) -> OpenPath | None:
        """Return the connection in use between two peers, or the one that would be opened now. None: there is no path.
        `needs`: bytes per second in each direction that a swap needs. Raises RelayBusy if no relay has room for
        them."""
        if self.is_open(called) or {caller, called} <= self._homes:
            return DIALLED
        held = self._connections.get((caller, called))
        if held is None or held.relay is None or not self._usable(held.relay, caller, called):
            return self._open(caller, called, needs)
        return held

    @contextmanager
    def connected(self, caller: PeerId, called: PeerId, needs: float = 0.0) -> Iterator[OpenPath]:
        """Hold a connection open while the context runs. Raises PartnerLost if there is no path, and RelayBusy as
        `between` does."""
        connection = self.between(caller, called, needs)
        if connection is None:
            raise PartnerLost(f"{called} can be called over no relay now")
        if connection.relay is None:
            yield connection
            return
        self._connections[caller, called] = connection
        at = self._relays[connection.relay]
        at.load.begins(connection, connection.needs)
        connection.used(1)
        try:
            yield connection
        finally:
            if not connection.used(-1):
                at.load.ends(connection)
                if self._connections.get((caller, called)) is connection:
                    del self._connections[caller, called]

    def course(self, sender: PeerId, to: PeerId, connection: OpenPath) -> Course:
        """Return the route of bytes from `sender` to `to` over a connection between them."""
        stops = connection.stops(sender, to)
        pipes = [pipe for leg in pairwise(stops) for pipe in self.lines(*leg)]
        if connection.relay is not None:
            pipes.append(self._relays[connection.relay].pipe)
        return Course(stops, tuple(pipes))

    def _usable(self, relay: PeerId, caller: PeerId, called: PeerId) -> bool:
        return called in self._relays[relay].reserved and self._passes(caller, relay) and self._passes(relay, called)

    def _open(self, caller: PeerId, called: PeerId, needs: float) -> OpenPath | None:
        usable = [relay for relay in self._relays if self._usable(relay, caller, called)]
        if not usable:
            return None
        usable.sort(key=lambda relay: self._rank(relay, caller, called))
        if can_punch(self._nats.get(caller), self._nats.get(called)):
            return OpenPath(Way(PathKind.PUNCHED, usable[0], "both routers let the other's packets in"), None)
        if caller in usable:
            return OpenPath(Way(PathKind.RELAYED, caller, "this peer is the relay itself"), None)
        with_room = [relay for relay in usable if not needs or not self._relays[relay].load.refusal_reason(needs)]
        if not with_room:
            raise RelayBusy(self._relays[usable[0]].load.refusal_reason(needs))
        return OpenPath(Way(PathKind.RELAYED, with_room[0], "no hole could be punched"), with_room[0], needs)

    def _rank(self, relay: PeerId, caller: PeerId, called: PeerId) -> tuple[int, int]:
        """Return the sort key of a relay, the best first: fewest connections in use, then a hash of the three ids."""
        lot = zlib.crc32(f"{relay} {caller} {called}".encode())
        return self._relays[relay].load.swaps, lot
