"""The `Transport` of a simulated peer. `peer.lab.sim.network.Network` delivers its calls."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from blake3 import blake3

from peer.aio.events import Signal
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.lab.sim.group_network import MemoryGroup
from peer.lab.sim.network import Network
from peer.lab.sim.reconnect import ReconnectingSink, carry_with_reconnects, longest_break_s
from peer.lab.sim.swap_rendezvous import LingeringSource, Meeting
from peer.membership.relay_reservations import Granted
from peer.ports.clock import Clock
from peer.ports.directory import Shown
from peer.ports.handler import Handler
from peer.protocol.diagnosis.analysis import believed
from peer.protocol.messages import (
    MAX_SHOWN_RECORDS,
    PayloadDigests,
    PeerId,
    PeerRecord,
    PeerTimings,
    Probed,
    RelayAttestation,
    RoundKey,
    StateIndex,
    SwapReport,
    Verdict,
    Vouched,
    Way,
    Welcome,
    artifact_name,
)
from peer.protocol.swarm.failure_detection import HEARD_S
from peer.protocol.swarm.relay_word import is_stale
from peer.protocol.wire.payload import Arrived, Sink, Source, ignore_arrival
from peer.transport.calls.call import A, AuthenticatedCaller, Call, CallServices, Q
from peer.transport.calls.group import JOIN_ROUND
from peer.transport.calls.small_calls import SmallCalls
from peer.transport.calls.state import STATE
from peer.transport.policy import OPEN, TransportPolicy
from peer.transport.relay.relay_server import RelayServer
from peer.transport.server.indirect_probe import DIAL_S
from peer.transport.server.rate_limits import CallLimits
from peer.transport.server.state_uploads import StateUploads
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter, UploadBudget
from peer.transport.wire.resumption import LINGER_S

T = TypeVar("T")

RESERVE_S = 5.0
"""Timeout of a request for a reservation at a relay, in seconds."""
SILENT_S = 40.0
"""Seconds without a sign of life after which a reservation at a relay counts as lost."""

LEAST_RATE = 62_500.0
"""Slowest accepted rate of a state transfer in bytes per second. It extends the timeout of a piece by the time for the
bytes that `Network.weight` adds to the piece on the wire."""


class MemoryTransport(MemoryGroup, SmallCalls):
    """One peer's client and server on a `Network`."""

    def __init__(
        self,
        network: Network,
        me: PeerId,
        handler: Handler,
        clock: Clock,
        policy: TransportPolicy = OPEN,
        ban_reason: Callable[[PeerId], str] = lambda peer: "",
    ) -> None:
        """`ban_reason`: returns why the operator banned a peer, for people. Empty: it is not banned."""
        super().__init__(network, me, clock)
        self._handler = handler
        self._policy = policy
        self._call_services = CallServices(
            handler=handler,
            uploads=StateUploads(Caps(Pacer(None), Pacer(None), Meter(budget=policy.quota)), clock.now),
            limits=CallLimits(clock.now),
            dial_back=_DialBack(network),
            indirect_probe=_IndirectProbe(network, me),
            relay_server=RelayServer(None, clock.now),
        )
        self._ban_reason = ban_reason
        network._hosts[me] = self

    def close(self) -> None:
        self._network.kill(self._me)

    def admit(self, caller: PeerId, *, even_banned: bool = False) -> None:
        """Admit a caller as `peer.transport.server.admission` does, but without rate limits. `even_banned`: a ban does
        not count for this call. Raises PartnerRefused."""
        if not even_banned and (why := self._ban_reason(caller)):
            raise PartnerRefused(Code.BANNED, why)
        if why := self._policy.reputation.exclusion_reason(caller):
            raise PartnerRefused(Code.STANDING, why)

    @property
    def quota(self) -> UploadBudget:
        return self._policy.quota

    async def unary(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> A:
        """Make a call, as `peer.transport.calls.call.Channel.unary`, but without tokens and without a Hello before
        it."""

        async def serve(host: MemoryTransport) -> A:
            serving = host.serve(self._me, call, request)
            return await (self._watched(to.peer_id, serving) if call is JOIN_ROUND else serving)

        if call.waits:
            return await _bounded(self._round_trip(to.peer_id, serve, call.even_banned), timeout_s, to.peer_id)
        return await self._call(to.peer_id, timeout_s, serve, call.even_banned)

    async def unary_aside(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> tuple[A, str]:
        """Make a call as `unary`, and also return the address called, as
        `peer.transport.calls.call.Channel.unary_aside`."""
        return await self.unary(to, call, request, timeout_s), to.endpoints[0]

    @property
    def port(self) -> int:
        return 0

    async def serve(self, caller: PeerId, call: Call[Q, A], request: Q) -> A:
        """Serve a call as `peer.transport.server.admission` does: a bad payload costs the caller reputation and is
        refused."""
        conduct = self._policy.reputation
        try:
            reply = await call.serve(
                self._call_services, AuthenticatedCaller(caller, "", caller, conduct.is_proven(caller)), request
            )
        except BadPayload as error:
            conduct.penalize(caller, error.code, error.reason)
            raise PartnerRefused(error.code, error.reason) from None
        if call is STATE:
            self._network.on_payload_sent(self._me, None, None)
        return reply

    async def _call(
        self,
        to: PeerId,
        timeout_s: float,
        serve: Callable[[MemoryTransport], Awaitable[T]],
        even_banned: bool = False,
    ) -> T:
        """Make a call that is served without waiting. Sets no timer for the deadline, because most calls meet it.
        Raises PartnerLost, PartnerSilent at the deadline, and the errors of `serve`."""
        try:
            return await self._round_trip(to, serve, even_banned, asyncio.get_running_loop().time() + timeout_s)
        except TimeoutError:
            raise _silent(to, timeout_s) from None

    async def _round_trip(
        self,
        to: PeerId,
        serve: Callable[[MemoryTransport], Awaitable[T]],
        even_banned: bool = False,
        by: float = math.inf,
    ) -> T:
        """Deliver the request, serve it and deliver the answer. `by`: deadline in loop time. Raises TimeoutError when a
        message would arrive later."""
        host = await self._network.reach(self._me, to, by=by)
        host.admit(self._me, even_banned=even_banned)
        answer = await serve(host)
        await self._network.reach(to, self._me, answer=True, by=by)
        return answer

    async def forget_connections(self) -> None:
        """Do nothing: a simulated transport keeps no connections."""

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        async def read_clock(host: MemoryTransport) -> float:
            return host._clock.now()

        before = self._clock.now()
        theirs = await self._call(to.peer_id, timeout_s, read_clock)
        after = self._clock.now()
        middle = (before + after) / 2 - self._clock.correction
        return Welcome(theirs - middle, after - before, f"memory:{self._me}")

    async def fetch_peers(self, to: PeerRecord, own: Shown, timeout_s: float) -> list[Shown]:
        """Exchange records as the call `Peers` does. They are passed on unsealed."""

        async def serve(host: MemoryTransport) -> list[Shown]:
            return host._handler.on_peers(self._me, own)[:MAX_SHOWN_RECORDS]

        return await self._call(to.peer_id, timeout_s, serve)

    async def hold_reservation(self, relay: PeerRecord, granted: Granted) -> None:
        """Hold a reservation at a relay. Ends only by an error: PartnerRefused (`busy`) if the relay is full,
        PartnerLost when it vanishes, PartnerSilent when it is cut off."""
        paths, at, me, broken = self._network.paths, relay.peer_id, self._me, Signal()

        async def reserve(host: MemoryTransport) -> bool:
            return paths.reserve(host._me, me, broken.set)

        if not await self._call(at, RESERVE_S, reserve):
            raise PartnerRefused(Code.BUSY, f"{at} has no place for a reservation")
        word: RelayAttestation | None = None
        try:
            while True:
                if is_stale(word, self._clock.now()):
                    word = self._network.relay_word(at, me, self._clock.now())
                    granted(paths.cap(at), word)
                if await broken.wait_for(SILENT_S):
                    raise PartnerLost(f"{at} is gone")
                if not self._network.flows_between(at, me):
                    raise PartnerSilent(f"nothing came from {at} for {SILENT_S:.0f} s", Code.SILENT)
        finally:
            paths.give_back(at, me)

    def relay_gone(self, partner: PeerId, within_s: float) -> PeerId | None:
        """Return None: a simulated swap continues over another relay as soon as there is one, so no relay is reported
        as gone."""
        return None

    def take_callers(self) -> tuple[str, ...]:
        """Return no caller: simulated calls carry no addresses."""
        return ()

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        source: Source,
        sink: Sink,
        timeout_s: float,
        dial: bool,
        told: PeerTimings | None = None,
        needs: float = 0.0,
    ) -> SwapReport:
        lasting, begun = LingeringSource(source), list[ReconnectingSink]()
        try:
            with contextlib.ExitStack() as held:
                if dial and needs:
                    paths, weight = self._network.paths, self._network.weight
                    held.enter_context(paths.connected(self._me, partner.peer_id, needs * weight))
                swap = self._swap(partner.peer_id, key, lasting, sink, dial, told, begun)
                report, meeting = await _bounded(swap, timeout_s, partner.peer_id)
                return await self._send_rest(partner.peer_id, meeting, report, begun[0], lasting)
        except PartnerSilent as error:
            raise (begun[0].broken if begun else None) or error from None
        finally:
            lasting.copy_rest()
            self._network.meetings.leave(self._me, partner.peer_id, key)

    async def _swap(
        self,
        partner: PeerId,
        key: RoundKey,
        lasting: LingeringSource,
        sink: Sink,
        dial: bool,
        told: PeerTimings | None,
        begun: list[ReconnectingSink],
    ) -> tuple[SwapReport, Meeting]:
        """Meet the partner and receive its payload."""
        if dial:
            host = await self._network.reach(self._me, partner)
            host.admit(self._me)
            answer = host._handler.on_swap(self._me, key)
            if answer.verdict in (Verdict.TAKEN, Verdict.REFUSED):
                raise PartnerRefused(Code(answer.verdict), answer.reason or f"{partner} does not swap {key}")
        if self._network.is_mute(self._me):
            await asyncio.Event().wait()
        meeting = self._network.meetings.of(self._me, partner, key)
        meeting.sides[self._me] = (lasting, sink, told)
        if len(meeting.sides) == 2:
            meeting.both.set()
        await meeting.both.wait()
        started = self._clock.now()
        theirs = self._network.tamper(partner, meeting.sides[partner][0])
        if theirs.nbytes != sink.nbytes:
            raise BadPayload(Code.LENGTH, f"{partner} announces {theirs.nbytes} bytes, {sink.nbytes} are due")
        self._network.on_payload_sent(partner, key, theirs)
        arriving = ReconnectingSink(theirs.nbytes, sink, theirs)
        begun.append(arriving)
        way = await self._receive_payload(partner, key, meeting, arriving, dial)
        meeting.mark_complete(self._me)
        self._network.swap_paths[way.path] += not key.part
        heard = believed(meeting.sides[partner][2], told)
        report = SwapReport(lasting.nbytes, theirs.nbytes, self._clock.now() - started, True, heard, way=way)
        return report, meeting

    async def _send_rest(
        self, partner: PeerId, meeting: Meeting, report: SwapReport, received: ReconnectingSink, sent: LingeringSource
    ) -> SwapReport:
        """Wait until the partner has everything too, since many homes send ten times slower than they receive. Return
        the report of the whole swap. The wait ends when the partner leaves, or is out of reach after `LINGER_S`."""
        network, host, began = self._network, self._network.host(partner), self._clock.now()
        while not meeting.over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await meeting.over.wait()
                    break
            if network.host(partner) is not host or not network.flows_between(self._me, partner):
                break
        seconds = report.seconds + self._clock.now() - began
        if partner in meeting.complete:
            return replace(report, seconds=seconds, digests=PayloadDigests(received.digest, sent.digest))
        digests = PayloadDigests(received.digest, b"")
        return replace(report, bytes_sent=0, seconds=seconds, sent_all=False, digests=digests)

    async def _receive_payload(
        self, partner: PeerId, key: RoundKey, meeting: Meeting, arriving: ReconnectingSink, dial: bool
    ) -> Way:
        """Receive the partner's payload. It stays readable until the partner leaves, and for a while longer once the
        partner has everything."""
        network, me = self._network, self._me

        def gave_up() -> bool:
            return partner not in meeting.complete and not network.meetings.is_current(me, partner, key, meeting)

        def patience_s() -> float:
            return longest_break_s(partner in meeting.complete)

        calls = me if dial else partner
        return await carry_with_reconnects(
            network, partner, me, arriving, calls=calls, is_lost=gave_up, patience_s=patience_s
        )

    def answered_at(self, peer: PeerId) -> str:
        return self._network.address(peer)

    async def fetch_artifact(
        self,
        donor: PeerRecord,
        digest: bytes,
        piece: int,
        nbytes: int,
        timeout_s: float,
        arrived: Arrived = ignore_arrival,
    ) -> bytes:
        async def call() -> bytes:
            data = await self._fetch_unchecked(donor.peer_id, artifact_name(digest), piece, arrived)
            if len(data) != nbytes:
                raise BadPayload(Code.LENGTH, f"{len(data)} bytes announced, {nbytes} are due")
            return bytes(data)

        return await _bounded(call(), timeout_s, donor.peer_id)

    async def _fetch_unchecked(
        self, donor: PeerId, snapshot: str, piece: int, arrived: Arrived = ignore_arrival
    ) -> memoryview:
        """Fetch one piece of a donor's snapshot without checking its digest. Raises PartnerRefused and PartnerLost."""
        host = await self._network.reach(self._me, donor)
        host.admit(self._me)
        data = host._handler.on_piece(snapshot, piece)
        if data is None:
            raise PartnerRefused(Code.GONE, f"{donor} no longer keeps {snapshot}")
        arriving = ReconnectingSink(len(data), arrived=arrived)
        patience_s = partial(longest_break_s, True)
        await carry_with_reconnects(
            self._network, donor, self._me, arriving, calls=self._me, patience_s=patience_s, giving=True
        )
        return data

    async def fetch_piece(
        self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float, arrived: Arrived = ignore_arrival
    ) -> bytes:
        async def call() -> bytes:
            data = await self._fetch_unchecked(donor.peer_id, index.snapshot, piece, arrived)
            if blake3(data).digest() != index.pieces[piece].digest:
                raise BadPayload(Code.DIGEST, f"piece {piece} from {donor.peer_id} does not match its digest")
            return bytes(data)

        named = index.pieces[piece].nbytes
        # the caller computed its timeout from the held bytes, without the weight of the network
        more_s = named * (self._network.weight - 1) / LEAST_RATE
        return await _bounded(call(), timeout_s + max(0.0, more_s), donor.peer_id)


class _IndirectProbe:
    """Serves indirect probes: reports whether this peer can reach a third one. Without rate limits."""

    def __init__(self, network: Network, me: PeerId) -> None:
        self._network = network
        self._me = me

    async def vouch(
        self, caller: PeerId, about: PeerId, record: PeerRecord | None, heard_ago_s: float | None
    ) -> Vouched:
        if heard_ago_s is not None and heard_ago_s <= HEARD_S:
            return Vouched(True, f"heard from {heard_ago_s:.0f} s ago")
        if record is None:
            return Vouched(None, "no address of it is known here")
        try:
            await _bounded(self._network.reach(self._me, about), DIAL_S, about)
        except PartnerLost as error:
            return Vouched(False, str(error))
        return Vouched(True, "it answers")


class _DialBack:
    """Serves dial-back requests: reports whether a caller can be dialled. Without rate limits."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def probe(self, caller: PeerId, host: str, endpoints: list[str], port: int) -> Probed:
        reached = self._network.paths.is_open(caller)
        return Probed(tuple(endpoints), tuple(endpoints) if reached else (), "" if reached else "no answer")


async def _bounded(call: Coroutine[Any, Any, T], timeout_s: float, who: PeerId) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError:
        raise _silent(who, timeout_s) from None


def _silent(who: PeerId, timeout_s: float) -> PartnerSilent:
    return PartnerSilent(f"{who} did not answer within {timeout_s:.1f} s")
