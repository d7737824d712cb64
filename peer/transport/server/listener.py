"""The listening side of the transport: sockets, limits of gRPC, and the methods that are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc

from peer.errors import AddressError
from peer.observe.control_bytes import BULK, ControlMeter
from peer.ports.handler import Handler
from peer.protocol.messages import Way
from peer.protocol.wire.frames import MAX_CHUNK
from peer.transport.client.channels import CHANNEL_OPTIONS
from peer.transport.client.streams import SERVICE
from peer.transport.config import TransportConfig
from peer.transport.front.callers import CallerTable
from peer.transport.front.front import AcceptingFront
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.relay.desk import RelayDesk
from peer.transport.relay.pipe import Stream
from peer.transport.relay.service import GiveWord, RelayService
from peer.transport.server.bind import bind
from peer.transport.server.discard import DiscardService
from peer.transport.server.group_service import GroupService
from peer.transport.server.receipt_service import ReceiptService
from peer.transport.server.service import ExchangeService
from peer.transport.server.summary_service import SummaryService
from peer.transport.tls import RenewedLeaf
from peer.transport.wire.payload_stream import Caps
from peer.transport.wire.refusals import served
from peer.v1 import exchange_pb2 as pb

CLOSE_S = 3.0
MAX_CALLS = 256
SERVER_OPTIONS = [
    *(option for option in CHANNEL_OPTIONS if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MAX_CHUNK + 2**10),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_connection_idle_ms", 600_000),  # without a call; a new one costs as much as half an hour of pings
    ("grpc.keepalive_time_ms", 120_000),  # finds callers that vanished without closing
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
]


class ExchangeServer:
    """One peer's server. `bind` and `serve` it first, and `close` it in the end."""

    def __init__(
        self,
        facts: TransportConfig,
        handler: Handler,
        service: ExchangeService,
        caps: Caps,
        callers: CallerTable,
        desk: RelayDesk,
        relay_word: GiveWord,
    ) -> None:
        self._facts = facts
        self._service = service
        self._groups = GroupService(handler, service.gate, caps)
        self._receipts = ReceiptService(handler, service.gate)
        self._summaries = SummaryService(handler, service.gate)
        self._relays = RelayService(desk, service.gate, relay_word)
        self._discards = DiscardService(service.gate, caps)
        self._desk = desk
        self._callers = callers
        self._front: AcceptingFront | None = None
        self._server: grpc.aio.Server | None = None
        self._inside: InnerSocket | None = None
        self._bound: list[socket.socket] = []
        """Sockets that wait for `serve`."""

    def bind(self, host: str, port: int, *more_hosts: str) -> int:
        """Take one port at all hosts and return it. Nobody is answered there before `serve`.

        Raises AddressError when the port is occupied or a host is not an address of this machine."""
        self._bound, port = bind([host, *more_hosts], port)
        return port

    async def serve(self) -> None:
        """Answer at the bound port from here on. Raises AddressError when there is no socket for gRPC."""
        sockets, self._bound = self._bound, []
        assert sockets, "the port is bound first"
        async with contextlib.AsyncExitStack() as undo:
            for one in sockets:
                undo.callback(one.close)
            undo.push_async_callback(self.close)
            inside = await self._serve_inside()
            self._front = AcceptingFront(
                self._callers, RenewedLeaf(self._facts.identity), self._desk, self._service.gate.conduct.is_proven
            )
            await self._front.open(sockets, inside)
            undo.pop_all()

    async def close(self) -> None:
        """End all calls within a second, and stop listening."""
        for one in self._bound:
            one.close()
        self._bound.clear()
        if self._front is not None:
            await self._front.stop_listening()
        await self._desk.close()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):  # gRPC's stop may never return; the process ends anyway
                async with asyncio.timeout(CLOSE_S):
                    await self._server.stop(0.5)
        if self._front is not None:
            await self._front.close()
        if self._inside is not None:
            self._inside.close()

    async def serve_circuit(self, stream: Stream, way: Way) -> None:
        """Serve a caller that came over a circuit, to its end."""
        assert self._front is not None, "nobody is called before the server listens"
        await self._front.serve_circuit(stream, way)

    async def _serve_inside(self) -> InnerSocket:
        """Start gRPC behind the front, and return where it listens."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            inside = self._inside = InnerSocket()
            self._server.add_insecure_port(inside.address)
            await self._server.start()
            inside.seal()
        except (RuntimeError, OSError) as error:
            fix = "Set TMPDIR to a short path where this program may write, on a file system of this machine."
            raise AddressError(f"cannot listen on a socket for gRPC: {error}", fix) from error
        return inside

    def _handlers(self) -> grpc.GenericRpcHandler:
        service, receipts, relays = self._service, self._receipts, self._relays
        unary = service.gate.unary
        methods = {
            "Hello": served(service.handshake.serve, pb.HelloReply.SerializeToString),
            "Offer": unary(service.offer, pb.OfferRequest.FromString, pb.OfferReply.SerializeToString),
            "Probe": unary(service.probe, pb.ProbeRequest.FromString, pb.ProbeReply.SerializeToString),
            "Vouch": unary(service.vouch, pb.VouchRequest.FromString, pb.VouchReply.SerializeToString),
            "Amendments": unary(
                service.amendments,
                pb.AmendmentsRequest.FromString,
                pb.AmendmentsReply.SerializeToString,
                even_banned=True,  # a banned peer learns from the amendments why it is banned
            ),
            "Papers": unary(service.papers, pb.PapersRequest.FromString, pb.PapersReply.SerializeToString),
            "Peers": unary(service.peers, pb.PeersRequest.FromString, pb.PeersReply.SerializeToString),
            "Manifest": unary(service.manifest, pb.ManifestRequest.FromString, pb.ManifestReply.SerializeToString),
            "Artifacts": unary(service.artifacts, pb.ArtifactsRequest.FromString, pb.ArtifactsReply.SerializeToString),
            "State": unary(service.state, pb.StateRequest.FromString, pb.StateReply.SerializeToString),
            "Receipt": unary(receipts.receipt, pb.ReceiptRequest.FromString, pb.ReceiptReply.SerializeToString),
            "Shown": unary(receipts.shown, pb.ShownRequest.FromString, pb.ShownReply.SerializeToString),
            "Relay": unary(relays.relay, pb.RelayRequest.FromString, pb.RelayReply.SerializeToString),
            "Summary": unary(self._summaries.summary, pb.SummaryRequest.FromString, pb.SummaryReply.SerializeToString),
            "Reserve": served(relays.reserve),
            "Swap": served(service.swap),
            "FetchPiece": served(service.fetch_piece),
            "Discard": served(self._discards.discard),
            **self._groups.methods(),
        }
        counted = {call: _counted(call, method, self._facts.control) for call, method in methods.items()}
        return grpc.method_handlers_generic_handler(SERVICE, counted)


def _counted(call: str, method: grpc.RpcMethodHandler, control: ControlMeter) -> grpc.RpcMethodHandler:
    """Return the handler of a call, whose messages are counted if they are control."""
    if call in BULK:
        return method
    decode = control.decoder(call, method.request_deserializer or bytes)
    encode = control.encoder(call, method.response_serializer or bytes)
    return grpc.stream_stream_rpc_method_handler(method.stream_stream, decode, encode)
