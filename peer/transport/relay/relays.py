"""One peer's use of relays: calling closed peers over them, being called over them, and judging their reliability."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import grpc

from peer.codes import Code
from peer.errors import NotDialled, PartnerLost, PartnerSilent
from peer.observe.control_bytes import ControlMeter
from peer.protocol.messages import MAX_ENDPOINTS, PathKind, PeerId, PeerRecord, RelayAddress, RunId, Status, Way
from peer.protocol.relay.punching import PunchMemory
from peer.protocol.relay.standing import RelayStanding
from peer.protocol.relay.testimony import RelayFault
from peer.transport.calls.reserve import OnGrant, hold
from peer.transport.client.connections import Connection
from peer.transport.client.dialling import Dialler
from peer.transport.policy import RelayPolicy
from peer.transport.relay.caller import Ask, CircuitCaller
from peer.transport.relay.pipe import Stream
from peer.transport.relay.reception import CircuitReception, ServeCircuit
from peer.transport.relay.tunnel import RelayTunnel

ASSUMED_S = 60.0
"""Validity in seconds of the provisional record of a relay whose address another peer gave."""

SETTLE_S = 2.0
"""Seconds after which a broken circuit counts as a failure of its relay. By then it is known whether the relay is
gone."""


class Relays:
    """The relays that one peer uses. `close` it at the end."""

    def __init__(
        self,
        ask: Ask,
        serve: ServeCircuit,
        dialler: Dialler,
        policy: RelayPolicy,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` requests a circuit from a relay. `serve` serves a caller that came over a circuit."""
        self._memory = PunchMemory()
        self._ask = ask
        self._caller = CircuitCaller(self._request, dialler, self._memory, now)
        self._reception = CircuitReception(serve, dialler, self.failed)
        self._standing = RelayStanding()
        self._settling: set[asyncio.TimerHandle] = set()
        self._left = policy.left
        self._record_of = policy.record_of
        self._now = now

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        """Create a tunnel to a closed peer over this relay. It is not started."""

        async def opened(bulk: bool, needs: float) -> tuple[Stream, Way]:
            return await self._caller.open(relay, target, bulk=bulk, needs=needs, answered=made.relay_answered)

        made = RelayTunnel(opened)
        return made

    def may_punch(self, target: PeerId) -> bool:
        """Return whether hole punching to a closed peer may succeed."""
        return self._memory.may_try(target, self._now())

    def endpoints_of(self, relay: PeerId) -> tuple[str, ...]:
        """Return the endpoints in a relay's own record; none if the record is not known."""
        record = self._record_of(relay)
        return () if record is None else record.endpoints

    def latest(self, to: PeerRecord) -> PeerRecord:
        """Return the peer's record with the relays that it names now, followed by those in `to`."""
        if (known := self._record_of(to.peer_id)) is None:
            return to
        relays = {relay.peer_id: relay for relay in (*known.relays, *to.relays)}
        return replace(to, relays=tuple(relays.values()))

    def known(self, peer: PeerId) -> PeerRecord | None:
        """Return the newest known record of a peer."""
        return self._record_of(peer)

    def standing(self, relays: Iterable[PeerId], to: PeerId | None = None) -> list[PeerId]:
        """Return these relays without those that are given up, or all if none remains. `to`: the peer to call; relays
        over which transfers with it broke come last."""
        return self._standing.order(list(relays), self._now(), to)

    def is_left(self, relay: PeerId) -> bool:
        """Return whether this relay is currently given up."""
        return self._standing.is_left(relay, self._now())

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault, *, bulk: bool = False) -> None:
        """Record that a relay failed. `other`: the peer at the other end, which may be at fault instead; the relay
        itself where there is none. `bulk`: a transfer broke. The failure counts after `SETTLE_S`, unless the relay is
        gone by then."""
        at = self._now()
        self._settle(relay, lambda: self._standing.failed(relay, other, fault, at, bulk=bulk))

    def tried(self, relay: PeerId, found: Mapping[PeerId, RelayFault | None]) -> None:
        """Record test results of a relay: for each peer that answers elsewhere, how the relay failed; None: the peer
        answered over it as well."""
        self._settle(relay, lambda: self._standing.tried(relay, found, self._now()))

    def _settle(self, relay: PeerId, judge: Callable[[], RelayFault | None]) -> None:
        """Judge a relay after `SETTLE_S`, when it is known whether the relay is gone."""

        def settle() -> None:
            self._settling.discard(timer)
            if (fault := judge()) is not None:
                self._left(relay, fault)

        timer = asyncio.get_running_loop().call_later(SETTLE_S, settle)
        self._settling.add(timer)

    async def _request(self, relay: RelayAddress, target: PeerId, bulk: bool, needs: float) -> tuple[bytes, str]:
        """Request a circuit from a relay, and record if the relay itself is gone."""
        try:
            return await self._ask(relay, target, bulk, needs)
        except PartnerLost as error:
            if not isinstance(error, PartnerSilent | NotDialled):
                self.gone(relay.peer_id)
            raise

    def gone(self, relay: PeerId) -> None:
        """Record that a relay itself is gone: our own call to it broke, or nothing answers at its address."""
        self._standing.gone(relay, self._now())

    def broke_by(self, other: PeerId, within_s: float) -> PeerId | None:
        """Return a relay that disappeared, in the last `within_s` seconds, during a transfer with a peer; None: there
        is none."""
        return self._standing.broke_by(other, self._now() - within_s)

    def answered(self, relay: PeerId, other: PeerId, why: str) -> None:
        """Record the end of a small call to a peer. `why`: why it was lost; empty: the peer answered."""
        if why:
            self.failed(relay, other, RelayFault(Code.SILENT, why))
        else:
            self._standing.worked(relay, other, self._now(), bulk=False)

    def ended(self, other: PeerId, way: Way, why: str = "") -> None:
        """Record the end of a transfer. `why`: why it broke; empty: it is complete."""
        over = PeerId(way.via) if way.path is PathKind.RELAYED and way.via else None
        if not why:
            self._completed(other, over)
        elif over is not None:
            self._standing.cut(over, other, self._now())
            self.failed(over, other, RelayFault(Code.BROKEN, why), bulk=True)

    def _completed(self, other: PeerId, over: PeerId | None) -> None:
        if over is not None:
            self._standing.worked(over, other, self._now(), bulk=True)
        for relay, at in self._standing.completed(other, over, self._now()):
            self._settle(relay, partial(self._standing.outdone, relay, other, at))

    async def hold(self, relay: PeerId, connection: Connection, granted: OnGrant, control: ControlMeter) -> None:
        """Hold a reservation over this connection, and accept the calls that come, until it ends.

        `granted` receives the relay's messages, and `control` counts their bytes. Raises the errors of
        `peer.transport.calls.reserve.hold`. A relay whose connection breaks counts as gone."""

        def called(slip: bytes) -> None:
            self._reception.accept(relay, connection.address, slip)

        try:
            await hold(connection, granted, called, control)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self.gone(relay)
            raise

    async def close(self) -> None:
        """End all calls that came over relays."""
        for timer in self._settling:
            timer.cancel()
        self._settling.clear()
        await self._reception.close()


def record_of(relay: RelayAddress, run_id: RunId, known: Iterable[str], now: float) -> PeerRecord:
    """Create a provisional record of a relay whose address another peer gave. `known`: further endpoints to try first;
    empty ones are ignored."""
    endpoints = tuple(dict.fromkeys(filter(None, (*known, relay.endpoint))))[:MAX_ENDPOINTS]
    return PeerRecord(relay.peer_id, run_id, endpoints, True, 1, 1, 0, 0.0, Status.SERVING, now, now + ASSUMED_S)
