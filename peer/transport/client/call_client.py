"""Makes calls to other peers: bounded in time, with a Hello where one is due. Every failure becomes PartnerLost,
PartnerRefused or BadPayload."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from peer.clock.clock_filter import OPERATOR
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.protocol.messages import PeerId, PeerRecord, Way, Welcome
from peer.transport.calls.call import A, Call, Q
from peer.transport.calls.hello import say_hello
from peer.transport.client.circuits import Circuits
from peer.transport.client.connections import SLOW_S, Connection, ConnectionPool
from peer.transport.client.dialling import Dialler
from peer.transport.client.relay_fault_finder import RelayFaultFinder
from peer.transport.client.streams import Stream, metadata
from peer.transport.config import TransportConfig
from peer.transport.wire.refusals import translate
from peer.transport.wire.resumption import Answered, TransferProgress, retry_transfer

T = TypeVar("T")
BROKE_OFF, SILENT = "a transfer over it broke off", "a call over it was lost"
"""Faults of a relay, for a person."""


class RelayObserver(Circuits, Protocol):
    """Receives the outcome of calls and transfers, by which relays are judged."""

    def answered(self, relay: PeerId, other: PeerId, why: str) -> None:
        """Record the end of a small call to `other` over a relay. `why`: why it was lost; empty: the peer answered."""

    def ended(self, other: PeerId, way: Way, why: str) -> None:
        """Record the end of a stream of a transfer. `why`: why it broke; empty: it is complete."""

    def latest(self, to: PeerRecord) -> PeerRecord:
        """Return the peer's record with the relays that it names now."""


class CallClient:
    """Makes the calls of one peer. All of them raise only PartnerLost, PartnerRefused or BadPayload."""

    def __init__(
        self,
        config: TransportConfig,
        pool: ConnectionPool,
        dialler: Dialler,
        correction: Callable[[], float],
        relays: RelayObserver,
    ) -> None:
        """`correction` returns the seconds by which `config.now` is ahead of our raw clock."""
        self._config = config
        self._pool = pool
        self._dialler = dialler
        self._correction = correction
        self._relays = relays
        self._fault_finder = RelayFaultFinder(pool, relays)

    async def unary(
        self,
        to: PeerRecord,
        call: Call[Q, A],
        request: Q,
        timeout_s: float,
        pool: ConnectionPool | None = None,
    ) -> A:
        """As `peer.transport.calls.call.Channel.unary`. `pool`: the connections to use in place of our own pool's."""
        control = self._config.control
        decoded = control.decoder(call.purpose, call.reply.FromString)

        async def make(connection: Connection) -> A:
            began = time.monotonic()
            multicallable = connection.control.unary_unary(
                call.path, request_serializer=control.encoder(call.purpose, call.request.SerializeToString)
            )
            async with self._small_call(to, connection):
                raw = await multicallable(request, metadata=metadata(connection), timeout=timeout_s)
            connection.observe_round_trip(time.monotonic() - began)
            if raw is None:  # the call ended with status OK but without a reply message
                raise BadPayload(Code.ANSWER, f"{to.peer_id} did not answer {call.name}")
            try:
                return decoded(raw)
            except DecodeError:  # decoded here, because gRPC would log the error and return None
                raise BadPayload(
                    Code.ANSWER, f"{to.peer_id} answered {call.name} with what is no {call.reply.__name__}"
                ) from None

        return await self.with_token(to, make, timeout_s, pool)

    async def with_token(
        self,
        to: PeerRecord,
        call: Callable[[Connection], Awaitable[T]],
        timeout_s: float,
        pool: ConnectionPool | None = None,
        got: Callable[[Connection], None] = lambda connection: None,
    ) -> T:
        """Run `call` on a connection to the peer, after a Hello if there is no valid token. If the peer reports that
        the token has expired, say Hello and run `call` again. `got` is called with the connection first."""
        connections = self._pool if pool is None else pool
        used: Connection | None = None

        async def attempt(connection: Connection) -> T:
            if connection.hello_due:
                await self.greet(to, connection)
            try:
                return await call(connection)
            except grpc.aio.AioRpcError as error:
                failure = translate(error, to.peer_id)
                if not isinstance(failure, PartnerRefused) or failure.code != Code.NO_TOKEN:
                    raise
            connection.drop_token()
            await self.greet(to, connection)
            return await call(connection)

        async def connected() -> T:
            nonlocal used
            connection = used = await connections.get(to, timeout_s)
            got(connection)
            try:
                return await attempt(connection)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:  # another call may have opened a newer one
                    await connections.drop(to.peer_id, connection)
                raise translate(error, to.peer_id) from None

        try:
            return await self.bounded(connected(), to, timeout_s)
        except PartnerLost as lost:
            if used is not None and pool is None:
                self._fault_finder.seek(to, used, silent=isinstance(lost, PartnerSilent))
            raise

    async def greet(self, to: PeerRecord, connection: Connection) -> Welcome:
        """Say Hello over this connection. The clock offset of a peer that our ticket names counts as that of a node
        of the operator."""
        async with self._small_call(to, connection), connection.hello_lock:
            welcome = await say_hello(connection, to, self._config, self._correction)
        self._dialler.record_seen_as(to.peer_id, welcome.seen_as)
        return replace(welcome, voice=OPERATOR) if self._dialler.trusts(to.peer_id) else welcome

    @contextlib.asynccontextmanager
    async def _small_call(self, to: PeerRecord, connection: Connection) -> AsyncIterator[None]:
        """If the call in the block goes over a relay, report whether the peer answered."""
        began, lost = time.monotonic(), False
        try:
            yield
        except asyncio.CancelledError:
            lost = True
            if time.monotonic() - began >= SLOW_S:
                self._answered(to, connection, SILENT)
            raise
        except (PartnerLost, grpc.aio.AioRpcError) as error:
            found = translate(error, to.peer_id) if isinstance(error, grpc.aio.AioRpcError) else error
            lost = not isinstance(found, PartnerRefused)
            if lost:
                self._answered(to, connection, SILENT)
            raise
        finally:
            if not lost:
                self._answered(to, connection, "")

    def _answered(self, to: PeerRecord, connection: Connection, why: str) -> None:
        if connection.relay is not None:
            self._relays.answered(connection.relay, to.peer_id, why)

    async def bounded(self, call: Awaitable[T], to: PeerRecord, timeout_s: float) -> T:
        """Await a call for at most `timeout_s` seconds, and translate its errors."""
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError:
            raise PartnerSilent(f"{to.peer_id} did not answer within {timeout_s:.1f} s") from None
        except asyncio.CancelledError:
            if _is_wanted():
                raise
            raise PartnerLost(f"{to.peer_id}: the call was broken off") from None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._pool.drop(to.peer_id)
            raise translate(error, to.peer_id) from None
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise PartnerLost(f"{to.peer_id}: the connection was closed ({error})") from error

    async def resumed(self, to: PeerRecord, stream: Stream[T], progress: TransferProgress, timeout_s: float) -> T:
        """Run a transfer over as many connections as necessary. If it fails to begin over a relay, try the peer's other
        relays."""
        used: Connection | None = None
        target = to

        async def attempt(answered: Answered) -> T:
            async def call(connection: Connection) -> T:
                async with connection.in_use():
                    return await stream(connection, answered)

            def got(connection: Connection) -> None:
                nonlocal used
                used = connection

            now_at = self._relays.latest(target) if progress.streams else target
            return await self.with_token(now_at, call, timeout_s, got=got)

        def broke_off() -> None:
            nonlocal used
            if used is not None:
                self._relays.ended(to.peer_id, used.way(), BROKE_OFF)
            used = None  # if the next attempt gets no connection, this one is not reported again

        async def forget() -> None:
            broken = used
            broke_off()
            await self._pool.drop(to.peer_id, broken)

        async def over_any_relay() -> T:
            nonlocal target
            while True:
                try:
                    return await retry_transfer(attempt, progress, forget)
                except PartnerLost:
                    relay = None if used is None else used.relay
                    others = tuple(one for one in target.relays if one.peer_id != relay)
                    if progress.streams or relay is None or not others:
                        raise
                    await forget()
                    target = replace(target, relays=others)

        try:
            found = await self.bounded(over_any_relay(), to, timeout_s)
        except PartnerLost:
            broke_off()
            raise
        assert used is not None
        self._relays.ended(to.peer_id, used.way(), "")
        return found


def _is_wanted() -> bool:
    """Return whether the current task is really being cancelled.

    gRPC also raises CancelledError when it aborts a part of a call. If that passed on, the caller's task would end
    without an error."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
