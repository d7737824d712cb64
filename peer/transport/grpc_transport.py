"""The `Transport` interface over gRPC.

The transport says Hello when it has to and bounds every call. It turns every failure into one of three exceptions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc
from blake3 import blake3

from peer.clock.clock_filter import OPERATOR
from peer.errors import BadPayload, PartnerLost, PartnerRefused, PartnerSilent
from peer.identity import Identity
from peer.observe.control_bytes import ControlMeter
from peer.ports.directory import Shown
from peer.ports.handler import Handler
from peer.protocol.messages import (
    MAX_ARTIFACTS,
    MAX_ENDPOINTS,
    MAX_SHOWN_RECORDS,
    PIECE_BYTES,
    WIRE_VERSION,
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    PeerTimings,
    Probed,
    RoundKey,
    RunId,
    StateIndex,
    SwapReport,
    Verdict,
    Vouched,
    Welcome,
    artifact_name,
)
from peer.protocol.pair.receipt import ShownReceipt, SignedOpinion
from peer.protocol.wire.payload import BufferSink, Sink, Source
from peer.transport.client.connections import Connection, ConnectionPool
from peer.transport.client.dialling import Dialler
from peer.transport.client.group_calls import GroupCalls
from peer.transport.client.handshake import say_hello
from peer.transport.client.streams import SERVICE, Stream, fetch, metadata, swap
from peer.transport.config import RunTerms, TransportConfig
from peer.transport.front.callers import CallerTable, files_in_force
from peer.transport.policy import OPEN, TransportPolicy
from peer.transport.server.listener import ExchangeServer
from peer.transport.server.receipt_service import told
from peer.transport.server.service import ExchangeService
from peer.transport.wire.pacing import Pacer, for_bulk
from peer.transport.wire.payload_stream import Caps, Meter, SwapTerms
from peer.transport.wire.refusals import UNKNOWN_CALL, eta_of, translate
from peer.transport.wire.resumption import Answered, TransferProgress, retry_transfer
from peer.transport.wire.validation import held_of, index_of, receipt_of, shown_of
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")


class GrpcTransport:
    """One peer's end of the exchange, client and server. `start` it first, and `close` it in the end."""

    def __init__(
        self,
        identity: Identity,
        run_id: RunId,
        handler: Handler,
        now: Callable[[], float],
        policy: TransportPolicy = OPEN,
        correction: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`correction`: what `now` differs from our raw clock, seconds."""
        self._facts = TransportConfig(
            identity=identity,
            run_id=run_id,
            now=now,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            invitation=policy.invitation,
        )
        up, down = Pacer(for_bulk(policy.max_upload)), Pacer(for_bulk(policy.max_download))
        self._caps = Caps(up, down, Meter(budget=policy.quota))
        callers = CallerTable(policy.front.within(files_in_force()))
        self.dialler = Dialler(policy.place)
        self._service = ExchangeService(self._facts, handler, self._caps, policy.reputation, callers, self.dialler)
        self._server = ExchangeServer(self._facts, handler, self._service, self._caps, callers)
        self.group = GroupCalls(self._unary, self._resumed, self._fetch, self._caps)
        self._channels = ConnectionPool(self.dialler)
        self._correction = correction
        self._port = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes of payload frames sent since the start."""
        return self._caps.meter.sent

    @property
    def bytes_received(self) -> int:
        return self._caps.meter.received

    @property
    def control(self) -> ControlMeter:
        """Counter of all small calls."""
        return self._facts.control

    def begin_run(self, terms: RunTerms) -> None:
        """Go by the run's terms, once its manifest is known. Whoever said Hello before says it again under them."""
        self._facts.begin_run(terms)
        self._channels.drop_tokens()
        self._service.gate.tokens.expire()

    def narrow_wire(self, low: int, high: int) -> None:
        """Speak only these wire versions from now on; those we do not know stay unspoken."""
        self._facts.narrow_wire(low, high)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, *more_hosts: str) -> int:
        """Listen at all hosts on one port and return that port.

        Raises AddressError when the port is occupied or a host is not an address of this machine."""
        self._port = await self._server.start(host, port, *more_hosts)
        return self._port

    async def forget_connections(self) -> None:
        """Drop all connections after a sleep: they are stale, and gRPC notices that late. The next call to each peer
        dials again."""
        await self._channels.close()

    async def close(self) -> None:
        """Close all connections and the server. Calls under way end within a second."""
        await self._channels.close()
        await self._server.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        async def call() -> Welcome:
            return await self._greet(to, await self._channels.get(to, timeout_s))

        return await self._bounded(call(), to, timeout_s)

    async def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer:
        key = offer.key
        request = pb.OfferRequest(
            round=key.round,
            fragment=key.fragment,
            withdraw=offer.withdraw,
            undialable=not offer.dialable,
            eta_s=offer.eta_s,
            proven=offer.proven,
        )
        reply = await self._unary(to, "Offer", request, pb.OfferReply, timeout_s)
        try:
            verdict = Verdict(reply.verdict)
        except ValueError:
            raise BadPayload("verdict", f"{to.peer_id} answered {reply.verdict[:32]!r}") from None
        return Answer(verdict, eta_of(reply.eta_s), reply.reason[:200], not reply.undialable, reply.proven)

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        request = pb.ProbeRequest(endpoints=endpoints[:MAX_ENDPOINTS], port=self._port)
        aside = ConnectionPool(self.dialler)  # the open one may go over another version of IP
        try:
            reply = await self._unary(by, "Probe", request, pb.ProbeReply, timeout_s, aside)
            asked_at = aside.endpoint_of(by.peer_id)
        finally:
            await aside.close()
        tried = tuple(endpoint[:270] for endpoint in reply.tried[:MAX_ENDPOINTS])
        return Probed(tried, tuple(e for e in tried if e in reply.answered), reply.reason[:500], asked_at)

    def take_callers(self) -> tuple[str, ...]:
        return self._service.handshake.take_callers()

    async def vouch(self, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
        reply = await self._unary(by, "Vouch", pb.VouchRequest(about=about), pb.VouchReply, timeout_s)
        return Vouched(reply.reaches if reply.known else None, reply.reason[:200])

    async def receipt(self, partner: PeerRecord, signed: SignedOpinion, timeout_s: float) -> SignedOpinion | None:
        request = pb.ReceiptRequest(
            round=signed.key.round,
            fragment=signed.key.fragment,
            opinion=told(signed.opinion),
            signature=signed.signature,
        )
        return receipt_of(await self._unary(partner, "Receipt", request, pb.ReceiptReply, timeout_s), signed.key)

    async def shown_receipts(self, by: PeerRecord, timeout_s: float) -> list[ShownReceipt]:
        return shown_of(await self._unary(by, "Shown", pb.ShownRequest(), pb.ShownReply, timeout_s))

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        request = pb.AmendmentsRequest(held=held, head=head)
        reply = await self._unary(to, "Amendments", request, pb.AmendmentsReply, timeout_s)
        return [(amendment.raw, amendment.signature) for amendment in reply.amendments]

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        reply = await self._unary(to, "Papers", pb.PapersRequest(held=held), pb.PapersReply, timeout_s)
        return list(reply.papers)

    async def fetch_peers(self, to: PeerRecord, own: Shown, timeout_s: float) -> list[Shown]:
        request = pb.PeersRequest(record=own if isinstance(own, bytes) else b"")
        reply = await self._unary(to, "Peers", request, pb.PeersReply, timeout_s)
        return list(reply.records[:MAX_SHOWN_RECORDS])

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
        reply = await self._unary(to, "Manifest", pb.ManifestRequest(), pb.ManifestReply, timeout_s)
        return reply.manifest, reply.signature

    async def describe_state(
        self, donor: PeerRecord, timeout_s: float, fresh: bool = False, wanted: str = ""
    ) -> StateIndex:
        request = pb.StateRequest(fresh=fresh, wanted=wanted)
        reply = await self._unary(donor, "State", request, pb.StateReply, timeout_s)
        return index_of(reply)

    def answered_at(self, peer: PeerId) -> str:
        return self._channels.endpoint_of(peer)

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes:
        wanted = index.pieces[piece]
        if wanted.nbytes > max(self._facts.terms.max_payload, PIECE_BYTES):
            raise BadPayload("length", f"a piece of {wanted.nbytes} bytes is beyond the run's limits")

        data = await self._fetch(donor, index.snapshot, piece, wanted.nbytes, timeout_s)
        if blake3(data).digest() != wanted.digest:
            raise BadPayload("digest", f"piece {piece} from {donor.peer_id} does not match its digest")
        return data

    async def ask_artifacts(self, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
        assert len(digests) <= MAX_ARTIFACTS
        try:
            request = pb.ArtifactsRequest(digests=digests)
            reply = await self._unary(holder, "Artifacts", request, pb.ArtifactsReply, timeout_s)
        except PartnerRefused as refusal:
            if refusal.code != UNKNOWN_CALL:
                raise
            return [False] * len(digests)
        return held_of(reply, len(digests))

    async def fetch_artifact(
        self, donor: PeerRecord, digest: bytes, piece: int, nbytes: int, timeout_s: float
    ) -> bytes:
        assert 0 < nbytes <= PIECE_BYTES
        return await self._fetch(donor, artifact_name(digest), piece, nbytes, timeout_s)

    async def _fetch(self, donor: PeerRecord, snapshot: str, piece: int, nbytes: int, timeout_s: float) -> bytes:
        progress, sink = TransferProgress.fetching(nbytes), BufferSink(nbytes)
        stream = partial(fetch, snapshot=snapshot, piece=piece, sink=sink, progress=progress, caps=self._caps)
        await self._resumed(donor, stream, progress, timeout_s)
        return bytes(sink.data)

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        source: Source,
        sink: Sink,
        timeout_s: float,
        dial: bool,
        told: PeerTimings | None = None,
    ) -> SwapReport:
        """Swap payloads with a partner. Both sides call this: one dials, the other waits to be dialled."""
        terms = SwapTerms(key, self._facts.terms.codec, source, sink, told)
        progress = TransferProgress.dialling(sink.nbytes) if dial else TransferProgress(sink.nbytes)
        try:
            if dial:
                stream = partial(swap, terms=terms, progress=progress, caps=self._caps)
                return await self._resumed(partner, stream, progress, timeout_s)
            accepting = self._service.swaps.accept(partner.peer_id, terms, progress)
            return await self._bounded(accepting, partner, timeout_s)
        except (PartnerLost, PartnerRefused) as error:
            lost = isinstance(error, PartnerLost)
            if progress.reader.complete and (lost or progress.broken is not None):
                return progress.report(source.nbytes, sink.nbytes, sent_all=not lost)
            raise progress.broken or error from None

    async def _resumed(self, to: PeerRecord, stream: Stream[T], progress: TransferProgress, timeout_s: float) -> T:
        """Run a transfer over as many connections as it takes."""
        used: Connection | None = None

        async def attempt(answered: Answered) -> T:
            async def call(connection: Connection) -> T:
                nonlocal used
                used = connection
                return await stream(connection, answered)

            return await self._with_token(to, call, timeout_s)

        async def forget() -> None:
            await self._channels.drop(to.peer_id, used)

        return await self._bounded(retry_transfer(attempt, progress, forget), to, timeout_s)

    # -- Hello and failures ------------------------------------------------------------------------------------------

    async def _unary(
        self,
        to: PeerRecord,
        method: str,
        request: Any,
        reply: type[T],
        timeout_s: float,
        pool: ConnectionPool | None = None,
    ) -> T:
        control = self._facts.control

        async def call(connection: Connection) -> T:
            began = time.monotonic()
            multicallable = connection.control.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=control.encoder(method, type(request).SerializeToString),
                response_deserializer=control.decoder(method, reply.FromString),  # type: ignore[attr-defined]
            )
            answer: T = await multicallable(request, metadata=metadata(connection), timeout=timeout_s)
            connection.observe_round_trip(time.monotonic() - began)
            return answer

        return await self._with_token(to, call, timeout_s, pool)

    async def _with_token(
        self,
        to: PeerRecord,
        call: Callable[[Connection], Awaitable[T]],
        timeout_s: float,
        pool: ConnectionPool | None = None,
    ) -> T:
        """Make a call, after a Hello if there is no token yet. A call whose token has run out is made a second time."""

        async def attempt() -> T:
            connection = await (self._channels if pool is None else pool).get(to, timeout_s)
            if connection.hello_due:
                await self._greet(to, connection)
            try:
                return await call(connection)
            except grpc.aio.AioRpcError as error:
                failure = translate(error, to.peer_id)
                if not isinstance(failure, PartnerRefused) or failure.code != "no_token":
                    raise
            connection.drop_token()
            await self._greet(to, connection)
            return await call(connection)

        return await self._bounded(attempt(), to, timeout_s)

    async def _greet(self, to: PeerRecord, connection: Connection) -> Welcome:
        async with connection.greeting:
            welcome = await say_hello(connection, to, self._facts, self._correction)
        self.dialler.seen(to.peer_id, welcome.seen_as)
        return replace(welcome, voice=OPERATOR) if self.dialler.trusts(to.peer_id) else welcome

    async def _bounded(self, call: Awaitable[T], to: PeerRecord, timeout_s: float) -> T:
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
                await self._channels.drop(to.peer_id)
            raise translate(error, to.peer_id) from None
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise PartnerLost(f"{to.peer_id}: the connection was closed ({error})") from error


def _is_wanted() -> bool:
    """Return whether the current task is really being cancelled.

    gRPC also raises CancelledError when it breaks off a part of a call. Passed on, that one would end the caller's task
    silently."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
