"""All that one peer does with relays: it calls closed peers over them, is called over them, and may be one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from peer.observe.control_bytes import ControlMeter
from peer.protocol.messages import MAX_ENDPOINTS, PathKind, PeerId, PeerRecord, RelayAddress, RunId, Status, Way
from peer.protocol.relay.punching import PunchMemory
from peer.protocol.relay.standing import RelayStanding
from peer.transport.client.connections import Connection
from peer.transport.client.dialling import Dialler
from peer.transport.relay.caller import Ask, CircuitCaller
from peer.transport.relay.reception import CircuitReception, ServeCircuit
from peer.transport.relay.reservation import Granted, hold
from peer.transport.relay.tunnel import RelayTunnel

ASSUMED_S = 60.0
"""Seconds for which the made-up record of a relay holds, whose address another peer told."""

Left = Callable[[PeerId, str], None]
"""Told each relay that is left, and why."""


class Relays:
    """The relays of one peer, as it uses them. `close` it in the end."""

    def __init__(
        self,
        ask: Ask,
        serve: ServeCircuit,
        dialler: Dialler,
        left: Left,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask`: asks a relay for a circuit. `serve`: serves a caller that came over one."""
        self._memory = PunchMemory()
        self._caller = CircuitCaller(ask, dialler, self._memory, now)
        self._reception = CircuitReception(serve, dialler, self.failed)
        self._standing = RelayStanding()
        self._left = left
        self._now = now

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        """Make a tunnel to a closed peer over this relay, not started."""
        return RelayTunnel(lambda bulk, needs: self._caller.open(relay, target, bulk=bulk, needs=needs))

    def may_punch(self, target: PeerId) -> bool:
        """Return whether a punched connection to a closed peer may be had."""
        return self._memory.may_try(target, self._now())

    def standing(self, relays: Iterable[PeerId]) -> list[PeerId]:
        """Return these relays without those that are left, or all where nothing else remains."""
        return self._standing.order(list(relays), self._now())

    def is_left(self, relay: PeerId) -> bool:
        """Return whether this relay is left now."""
        return self._standing.is_left(relay, self._now())

    def failed(self, relay: PeerId, other: PeerId, why: str, *, bulk: bool = False) -> None:
        """Note that a relay did not do its part. `other`: the peer at the other end, whose fault it may be; the relay
        where there is none. `bulk`: a transfer over it broke."""
        if reason := self._standing.failed(relay, other, why, self._now(), bulk=bulk):
            self._left(relay, reason)

    def answered(self, relay: PeerId, other: PeerId, why: str) -> None:
        """Note the end of a small call to a peer. `why`: the reason why it was lost; empty: the peer has answered."""
        if why:
            self.failed(relay, other, why)
        else:
            self._standing.worked(relay, other, self._now(), bulk=False)

    def ended(self, other: PeerId, way: Way, why: str = "") -> None:
        """Note the end of a transfer. `why`: the reason why it broke; empty: it is complete."""
        if way.path is not PathKind.RELAYED or not way.via:
            return
        if why:
            self.failed(PeerId(way.via), other, why, bulk=True)
        else:
            self._standing.worked(PeerId(way.via), other, self._now(), bulk=True)

    async def hold(self, relay: PeerId, connection: Connection, granted: Granted, control: ControlMeter) -> None:
        """Hold a reservation over this connection, and take the calls that come, until it ends.

        `granted` is told what the relay says, and `control` counts it. Raises as the `hold` of a reservation."""

        def called(slip: bytes) -> None:
            self._reception.take(relay, connection.address, slip)

        await hold(connection, granted, called, control)

    async def close(self) -> None:
        """End all calls that came over relays."""
        await self._reception.close()


def record_of(relay: RelayAddress, run_id: RunId, known: Iterable[str], now: float) -> PeerRecord:
    """Make a record of a relay whose address another peer told. `known`: further endpoints of it, tried first; empty
    ones do not count."""
    endpoints = tuple(dict.fromkeys(filter(None, (*known, relay.endpoint))))[:MAX_ENDPOINTS]
    return PeerRecord(relay.peer_id, run_id, endpoints, True, 1, 1, 0, 0.0, Status.SERVING, now, now + ASSUMED_S)
