"""All that one peer does with relays: it calls closed peers over them, is called over them, and may be one."""

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
"""Seconds for which the made-up record of a relay holds, whose address another peer told."""

SETTLE_S = 2.0
"""Seconds after which a circuit that broke counts as a failure of its relay. By then it shows whether the relay is
gone."""


class Relays:
    """The relays of one peer, as it uses them. `close` it in the end."""

    def __init__(
        self,
        ask: Ask,
        serve: ServeCircuit,
        dialler: Dialler,
        policy: RelayPolicy,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask`: asks a relay for a circuit. `serve`: serves a caller that came over one."""
        self._memory = PunchMemory()
        self._ask = ask
        self._caller = CircuitCaller(self._asked, dialler, self._memory, now)
        self._reception = CircuitReception(serve, dialler, self.failed)
        self._standing = RelayStanding()
        self._settling: set[asyncio.TimerHandle] = set()
        self._left = policy.left
        self._record_of = policy.record_of
        self._now = now

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        """Make a tunnel to a closed peer over this relay, not started."""

        async def opened(bulk: bool, needs: float) -> tuple[Stream, Way]:
            return await self._caller.open(relay, target, bulk=bulk, needs=needs, answered=made.relay_answered)

        made = RelayTunnel(opened)
        return made

    def may_punch(self, target: PeerId) -> bool:
        """Return whether a punched connection to a closed peer may be had."""
        return self._memory.may_try(target, self._now())

    def endpoints_of(self, relay: PeerId) -> tuple[str, ...]:
        """Return the endpoints in a relay's own record, as far as it is known."""
        record = self._record_of(relay)
        return () if record is None else record.endpoints

    def latest(self, to: PeerRecord) -> PeerRecord:
        """Return the record of a peer with the relays that it names by now. Those of `to` come after them."""
        if (known := self._record_of(to.peer_id)) is None:
            return to
        relays = {relay.peer_id: relay for relay in (*known.relays, *to.relays)}
        return replace(to, relays=tuple(relays.values()))

    def known(self, peer: PeerId) -> PeerRecord | None:
        """Return the newest record of a peer that is known."""
        return self._record_of(peer)

    def standing(self, relays: Iterable[PeerId], to: PeerId | None = None) -> list[PeerId]:
        """Return these relays without those that are left, or all where nothing else remains. `to`: whom to call; the
        relays over which a transfer with it breaks come last."""
        return self._standing.order(list(relays), self._now(), to)

    def is_left(self, relay: PeerId) -> bool:
        """Return whether this relay is left now."""
        return self._standing.is_left(relay, self._now())

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault, *, bulk: bool = False) -> None:
        """Note that a relay did not do its part. `other`: the peer at the other end, whose fault it may be; the relay
        where there is none. `bulk`: a transfer over it broke. It counts a moment later, unless the relay is gone."""
        at = self._now()
        self._settle(relay, lambda: self._standing.failed(relay, other, fault, at, bulk=bulk))

    def tried(self, relay: PeerId, found: Mapping[PeerId, RelayFault | None]) -> None:
        """Note what peers that answer elsewhere testify on a relay. None: such a peer answered over it, too."""
        self._settle(relay, lambda: self._standing.tried(relay, found, self._now()))

    def _settle(self, relay: PeerId, judge: Callable[[], RelayFault | None]) -> None:
        """Judge a relay in a moment: by then it shows whether it is gone."""

        def settle() -> None:
            self._settling.discard(timer)
            if (fault := judge()) is not None:
                self._left(relay, fault)

        timer = asyncio.get_running_loop().call_later(SETTLE_S, settle)
        self._settling.add(timer)

    async def _asked(self, relay: RelayAddress, target: PeerId, bulk: bool, needs: float) -> tuple[bytes, str]:
        """Ask a relay for a circuit, and note whether it is there at all."""
        try:
            return await self._ask(relay, target, bulk, needs)
        except PartnerLost as error:
            if not isinstance(error, PartnerSilent | NotDialled):
                self.gone(relay.peer_id)
            raise

    def gone(self, relay: PeerId) -> None:
        """Note that a relay itself is not there: our own call to it broke off, or nobody answers at its address."""
        self._standing.gone(relay, self._now())

    def broke_by(self, other: PeerId, within_s: float) -> PeerId | None:
        """Return a relay that was gone in the middle of a transfer with a peer, in the last `within_s` seconds."""
        return self._standing.broke_by(other, self._now() - within_s)

    def answered(self, relay: PeerId, other: PeerId, why: str) -> None:
        """Note the end of a small call to a peer. `why`: the reason why it was lost; empty: the peer has answered."""
        if why:
            self.failed(relay, other, RelayFault(Code.SILENT, why))
        else:
            self._standing.worked(relay, other, self._now(), bulk=False)

    def ended(self, other: PeerId, way: Way, why: str = "") -> None:
        """Note the end of a transfer. `why`: the reason why it broke; empty: it is complete."""
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
        """Hold a reservation over this connection, and take the calls that come, until it ends.

        `granted` is told what the relay says, and `control` counts it. Raises as the `hold` of a reservation; a relay
        that breaks off is gone."""

        def called(slip: bytes) -> None:
            self._reception.take(relay, connection.address, slip)

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
    """Make a record of a relay whose address another peer told. `known`: further endpoints of it, tried first; empty
    ones do not count."""
    endpoints = tuple(dict.fromkeys(filter(None, (*known, relay.endpoint))))[:MAX_ENDPOINTS]
    return PeerRecord(relay.peer_id, run_id, endpoints, True, 1, 1, 0, 0.0, Status.SERVING, now, now + ASSUMED_S)
