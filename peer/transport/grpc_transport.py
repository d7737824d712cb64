"""The `Transport` interface over gRPC.

The transport says Hello when a call needs it, bounds every call in time, and turns every failure into PartnerLost,
PartnerRefused or BadPayload."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import grpc
from blake3 import blake3

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused, RelayBusy
from peer.identity import Identity
from peer.observe.control_bytes import ControlMeter
from peer.ports.handler import Handler
from peer.process_limits import open_file_limits
from peer.protocol.endpoints import host_of_caller
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink
from peer.protocol.messages import (
    PIECE_BYTES,
    WIRE_VERSION,
    PathKind,
    PeerId,
    PeerRecord,
    PeerTimings,
    RelayAddress,
    RelayAttestation,
    RoundKey,
    RunId,
    StateIndex,
    SwapReport,
    Way,
    Welcome,
    artifact_name,
)
from peer.protocol.swarm.nearness import is_private
from peer.protocol.swarm.relay_word import sign_attestation
from peer.protocol.wire.payload import Arrived, CountedSink, Sink, Source, ignore_arrival
from peer.signed_start import KeyStarts
from peer.transport.calls.call import A, Call, Q
from peer.transport.calls.discard import UploadTest
from peer.transport.calls.relay import invoke as invoke_relay
from peer.transport.calls.reserve import OnGrant
from peer.transport.calls.small_calls import SmallCalls
from peer.transport.client.call_client import CallClient
from peer.transport.client.connections import Connection, ConnectionPool
from peer.transport.client.contribution import contribute
from peer.transport.client.dialling import Dialler
from peer.transport.client.streams import fetch, swap
from peer.transport.config import RunTerms, TransportConfig
from peer.transport.front.callers import CallerTable
from peer.transport.policy import OPEN, TransportPolicy
from peer.transport.relay.pipe import Stream as RawStream
from peer.transport.relay.relay_server import RelayServer
from peer.transport.relay.relays import Relays, record_of
from peer.transport.relay.throttle import throttle_of
from peer.transport.relay.wire import SLIP_BYTES
from peer.transport.server.listener import ExchangeServer
from peer.transport.server.service import ExchangeService
from peer.transport.server.swap_rendezvous import SwapWays
from peer.transport.signing import KeySigner
from peer.transport.wire.pacing import Pacer, for_bulk
from peer.transport.wire.payload_stream import Caps, Meter, SwapTerms
from peer.transport.wire.refusals import translate
from peer.transport.wire.resumption import Answered, TransferProgress

ASK_RELAY_S = 8.0
"""Timeout in seconds of connecting to a relay and getting its answer."""


class GrpcTransport(SmallCalls):
    """One peer's end of the exchange, client and server. Call `bind` and `serve` first (or `start`, which does both),
    and `close` at the end."""

    def __init__(
        self,
        identity: Identity,
        run_id: RunId,
        handler: Handler,
        now: Callable[[], float],
        policy: TransportPolicy = OPEN,
        correction: Callable[[], float] = lambda: 0.0,
        starts: KeyStarts | None = None,
    ) -> None:
        """`correction` returns the seconds by which `now` is ahead of our raw clock. `starts`: None for a guest."""
        self._config = TransportConfig(
            identity=identity,
            run_id=run_id,
            now=now,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            invitation=policy.invitation,
            starts=starts,
        )
        up, down = Pacer(for_bulk(policy.max_upload)), Pacer(for_bulk(policy.max_download))
        self._caps = Caps(up, down, Meter(budget=policy.quota))
        callers = CallerTable(policy.front.within(open_file_limits()[0]))
        self.dialler = Dialler(policy.place)
        self.relay_server = RelayServer(
            throttle_of(policy.relaying.rate, policy.max_upload, self._caps), time.monotonic
        )
        self.relays = Relays(self._request_circuit, self._serve_circuit, self.dialler, policy.relaying)
        ways = SwapWays(partial(_way_of, callers, policy.relaying.mapped), self.relays.ended)
        self._service = ExchangeService(
            self._config,
            handler,
            self._caps,
            policy.reputation,
            callers,
            self.dialler,
            ways,
            self._silence_reason,
            self.relay_server,
        )
        self._server = ExchangeServer(
            self._config, self._service, self._caps, callers, self.relay_server, self._sign_origin
        )
        self._pool = ConnectionPool(self.dialler, self.relays)
        self._call_client = CallClient(self._config, self._pool, self.dialler, correction, self.relays)
        self.upload_test = UploadTest(self._call_client, self._caps)
        self._port = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes of payload frames sent since the start."""
        return self._caps.meter.sent

    @property
    def bytes_received(self) -> int:
        """Bytes of payload frames received since the start."""
        return self._caps.meter.received

    @property
    def control(self) -> ControlMeter:
        """Counter of the bytes of all small calls."""
        return self._config.control

    def begin_run(self, terms: RunTerms) -> None:
        """Apply the run's terms, once its manifest is known. All tokens expire, so that every connection says Hello
        again under these terms."""
        self._config.begin_run(terms)
        self._pool.drop_tokens()
        self._service.admission.tokens.expire()

    def narrow_wire(self, low: int, high: int) -> None:
        """Restrict the wire versions to those from `low` to `high` that this program implements."""
        self._config.narrow_wire(low, high)

    # -- life --------------------------------------------------------------------------------------------------------

    def bind(self, host: str, port: int, *more_hosts: str) -> int:
        """Reserve one port on all hosts and return it. Callers are served only after `serve`.

        Raises AddressError when the port is occupied or a host is not an address of this machine."""
        self._port = self._server.bind(host, port, *more_hosts)
        return self._port

    async def serve(self) -> None:
        """Start serving callers. Raises AddressError when no socket for gRPC can be created."""
        await self._server.serve()

    async def start(self, host: str, port: int, *more_hosts: str) -> int:
        """`bind`, then `serve`. Return the port."""
        self.bind(host, port, *more_hosts)
        await self.serve()
        return self._port

    async def forget_connections(self) -> None:
        """Close all connections after the machine slept: they are dead, which gRPC would notice late. Later calls
        connect again."""
        await self._pool.close()

    async def close(self) -> None:
        """Close all connections and the server. Running calls end within a second."""
        await self._pool.close()
        await self.relays.close()
        await self._server.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def unary(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> A:
        """As `peer.transport.calls.call.Channel.unary`."""
        return await self._call_client.unary(to, call, request, timeout_s)

    async def unary_aside(self, to: PeerRecord, call: Call[Q, A], request: Q, timeout_s: float) -> tuple[A, str]:
        """As `peer.transport.calls.call.Channel.unary_aside`."""
        aside = ConnectionPool(self.dialler)
        try:
            return await self._call_client.unary(to, call, request, timeout_s, aside), aside.endpoint_of(to.peer_id)
        finally:
            await aside.close()

    @property
    def port(self) -> int:
        return self._port

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome:
        async def call() -> Welcome:
            return await self._call_client.greet(to, await self._pool.get(to, timeout_s))

        return await self._call_client.bounded(call(), to, timeout_s)

    async def greet_copy(self, copy: PeerRecord, timeout_s: float) -> None:
        """Say Hello to another process that has our own key, at the endpoints of its record, so that `KeyStarts`
        compares the two starts.

        Raises PartnerLost, PartnerRefused or BadPayload."""
        aside = ConnectionPool(self.dialler)

        async def call() -> None:
            await self._call_client.greet(copy, await aside.get(copy, timeout_s))

        try:
            await self._call_client.bounded(call(), copy, timeout_s)
        finally:
            await aside.close()

    def take_callers(self) -> tuple[str, ...]:
        return self._service.handshake.take_callers()

    def answered_at(self, peer: PeerId) -> str:
        return self._pool.endpoint_of(peer)

    async def fetch_piece(
        self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float, arrived: Arrived = ignore_arrival
    ) -> bytes:
        wanted = index.pieces[piece]
        if wanted.nbytes > max(self._config.terms.max_payload, PIECE_BYTES):
            raise BadPayload(Code.LENGTH, f"a piece of {wanted.nbytes} bytes is beyond the run's limits")
        data = await self._fetch(donor, index.snapshot, piece, wanted.nbytes, timeout_s, arrived)
        if blake3(data).digest() != wanted.digest:
            raise BadPayload(Code.DIGEST, f"piece {piece} from {donor.peer_id} does not match its digest")
        return data

    async def fetch_artifact(
        self,
        donor: PeerRecord,
        digest: bytes,
        piece: int,
        nbytes: int,
        timeout_s: float,
        arrived: Arrived = ignore_arrival,
    ) -> bytes:
        assert 0 < nbytes <= PIECE_BYTES
        return await self._fetch(donor, artifact_name(digest), piece, nbytes, timeout_s, arrived)

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        assert 0 < nbytes <= PIECE_BYTES
        return await self._fetch(donor, snapshot, part, nbytes, timeout_s)

    async def contribute(
        self, owner: PeerRecord, opening: ContributionHeader, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        return await contribute(self._call_client, owner, opening, source, sink, timeout_s, self._caps)

    async def _fetch(
        self,
        donor: PeerRecord,
        snapshot: str,
        piece: int,
        nbytes: int,
        timeout_s: float,
        arrived: Arrived = ignore_arrival,
    ) -> bytes:
        progress, sink = TransferProgress.fetching(nbytes), CountedSink(nbytes, arrived)
        stream = partial(fetch, snapshot=snapshot, piece=piece, sink=sink, progress=progress, caps=self._caps)
        await self._call_client.resumed(donor, stream, progress, timeout_s)
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
        needs: float = 0.0,
    ) -> SwapReport:
        """Swap payloads with a partner. Both sides call this: one dials (`dial`), the other waits to be dialled."""
        terms = SwapTerms(key, self._config.terms.codec, source, sink, told)
        progress = TransferProgress.dialling(sink.nbytes) if dial else TransferProgress(sink.nbytes)
        try:
            if dial:
                return await self._dialled(partner, terms, progress, timeout_s, needs)
            accepting = self._service.swaps.accept(partner.peer_id, terms, progress)
            return await self._call_client.bounded(accepting, partner, timeout_s)
        except (PartnerLost, PartnerRefused) as error:
            lost = isinstance(error, PartnerLost)
            if progress.reader.complete and (lost or progress.broken is not None):
                return progress.report(source.nbytes, sink.nbytes, sent_all=not lost)
            raise progress.broken or error from None

    async def _dialled(
        self, partner: PeerRecord, terms: SwapTerms, progress: TransferProgress, timeout_s: float, needs: float
    ) -> SwapReport:
        """Swap on the dialling side. If a relay has no room, try the next. Raises RelayBusy when none has room."""

        async def stream(connection: Connection, answered: Answered) -> SwapReport:
            connection.begin_swap(needs)
            try:
                await connection.ready_for_bulk(ASK_RELAY_S)
                report = await swap(connection, answered, terms=terms, progress=progress, caps=self._caps)
                return replace(report, way=connection.way(mapped=partner.mapped))
            except (PartnerLost, grpc.aio.AioRpcError):
                if connection.no_room:
                    raise RelayBusy(connection.no_room) from None
                raise

        while True:
            try:
                return await self._call_client.resumed(partner, stream, progress, timeout_s)
            except RelayBusy:
                full = self._pool.open_connection(partner.peer_id)
                others = tuple(relay for relay in partner.relays if full is None or relay.peer_id != full.relay)
                if not others or len(others) == len(partner.relays):
                    raise
                partner = replace(partner, relays=others)

    # -- relays ------------------------------------------------------------------------------------------------------

    def way_to(self, peer: PeerRecord) -> Way | None:
        """Return the path of the open connection to a peer; None: there is no connection."""
        held = self._pool.open_connection(peer.peer_id)
        return None if held is None else held.way(mapped=peer.mapped)

    def relay_gone(self, partner: PeerId, within_s: float) -> PeerId | None:
        return self.relays.broke_by(partner, within_s)

    async def hold_reservation(self, relay: PeerRecord, granted: OnGrant) -> None:
        """Hold a place at a relay until it ends, and serve the calls that come over it.

        `granted` receives the relay's cap and statements. Raises PartnerLost, PartnerRefused or BadPayload."""
        aside = ConnectionPool(self.dialler)  # a separate pool: failures of other calls must not end the reservation
        try:
            connection = await self._call_client.bounded(aside.get(relay, ASK_RELAY_S), relay, ASK_RELAY_S)
            await self._call_client.bounded(self._call_client.greet(relay, connection), relay, ASK_RELAY_S)
            await self.relays.hold(relay.peer_id, connection, granted, self._config.control)
        except grpc.aio.AioRpcError as error:
            raise translate(error, relay.peer_id) from None
        finally:
            await aside.close()

    def _sign_origin(self, peer: PeerId, block: str) -> RelayAttestation:
        """Sign a statement of the address block from which a closed peer calls this relay."""
        return sign_attestation(
            self._config.run_id, peer, block, self._config.now(), KeySigner(self._config.identity).sign
        )

    async def _request_circuit(
        self, relay: RelayAddress, target: PeerId, bulk: bool, needs: float
    ) -> tuple[bytes, str]:
        """Request a circuit from a relay. Return our slip and the address at which the relay answered."""
        known = (self._pool.endpoint_of(relay.peer_id), *self.relays.endpoints_of(relay.peer_id))
        record = record_of(relay, self._config.run_id, known, self._config.now())
        slip = await invoke_relay(self, record, target, ASK_RELAY_S, bulk=bulk, needs=needs)
        if len(slip) != SLIP_BYTES or (held := self._pool.open_connection(relay.peer_id)) is None or held.relay:
            raise PartnerLost(f"{relay.peer_id}: the relay hung up")
        return slip, held.address

    async def _silence_reason(self, peer: PeerRecord, timeout_s: float) -> str:
        """Return why a closed peer does not answer over its relays; empty: it answers."""
        aside = ConnectionPool(self.dialler, self.relays)
        try:
            await self._call_client.bounded(aside.get(peer, timeout_s), peer, timeout_s)
        except PartnerLost as error:
            return str(error)
        finally:
            await aside.close()
        return ""

    async def _serve_circuit(self, stream: RawStream, way: Way) -> None:
        await self._server.serve_circuit(stream, way)


def _way_of(callers: CallerTable, mapped: Callable[[], bool], seen_as: str) -> Way:
    """Return the path of a partner's call. `seen_as`: the caller's address as gRPC sees it."""
    way = callers.way(seen_as)
    if way.path is not PathKind.DIRECT:
        return way
    if mapped() and not is_private(host_of_caller(callers.origin(seen_as) or "")):
        return Way(PathKind.MAPPED, why="our router opened a port for us")
    return Way(why="it called an address of ours")
