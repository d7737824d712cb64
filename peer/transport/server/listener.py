"""The listening side of the transport: sockets, limits of gRPC, and the methods that are served."""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from peer.errors import AddressError
from peer.identity import Identity
from peer.ports.handler import Handler
from peer.protocol.endpoints import join_host
from peer.protocol.wire.frames import MAX_CHUNK
from peer.transport.client.connections import CHANNEL_OPTIONS
from peer.transport.client.streams import SERVICE
from peer.transport.server.bind import check_vacant, listening
from peer.transport.server.group_service import GroupService
from peer.transport.server.receipt_service import ReceiptService
from peer.transport.server.service import ExchangeService
from peer.transport.tls import server_credentials
from peer.transport.wire.payload_stream import Caps
from peer.transport.wire.refusals import served
from peer.v1 import exchange_pb2 as pb

CLOSE_S = 3.0
MAX_CALLS = 256
MAX_CONNECTIONS = 384
"""Most connections that the server accepts.

gRPC cannot count connections by address. Without a bound, one caller could use up the open files of the process. A peer
that is kept out can still be dialled by us."""
SERVER_OPTIONS = [
    *(option for option in CHANNEL_OPTIONS if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MAX_CHUNK + 2**10),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 10_000),  # TLS and the first HTTP/2 frames together
    ("grpc.max_connection_idle_ms", 90_000),  # without a call; callers reconnect unnoticed
    ("grpc.keepalive_time_ms", 60_000),  # finds callers that vanished without closing
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
]


class ExchangeServer:
    """One peer's server. `start` it first, and `close` it in the end."""

    def __init__(self, identity: Identity, handler: Handler, service: ExchangeService, caps: Caps) -> None:
        self._identity = identity
        self._service = service
        self._groups = GroupService(handler, service.gate, caps)
        self._receipts = ReceiptService(handler, service.gate)
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int, *more_hosts: str) -> int:
        """Listen at all hosts on one port and return that port.

        Raises AddressError when the port is occupied or a host is not an address of this machine."""
        server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        credentials = server_credentials(self._identity)
        for one in listening([host, *more_hosts]):
            where = join_host(one, port)
            check_vacant(one, port, where)
            try:
                port = server.add_secure_port(where, credentials)
            except RuntimeError as error:
                raise AddressError(f"cannot listen on {where}: {error}", "Choose another --port.") from error
            if port == 0:
                raise AddressError(f"cannot listen on {where}: the port is in use", "Choose another --port, or none.")
        await server.start()
        self._server = server
        return port

    async def close(self) -> None:
        """End all calls within a second, and stop listening."""
        if self._server is not None:
            with contextlib.suppress(TimeoutError):  # gRPC's stop may never return; the process ends anyway
                async with asyncio.timeout(CLOSE_S):
                    await self._server.stop(0.5)

    def _handlers(self) -> grpc.GenericRpcHandler:
        service, receipts, unary = self._service, self._receipts, self._service.gate.unary
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
            "Manifest": unary(service.manifest, pb.ManifestRequest.FromString, pb.ManifestReply.SerializeToString),
            "Artifacts": unary(service.artifacts, pb.ArtifactsRequest.FromString, pb.ArtifactsReply.SerializeToString),
            "State": unary(service.state, pb.StateRequest.FromString, pb.StateReply.SerializeToString),
            "Receipt": unary(receipts.receipt, pb.ReceiptRequest.FromString, pb.ReceiptReply.SerializeToString),
            "Shown": unary(receipts.shown, pb.ShownRequest.FromString, pb.ShownReply.SerializeToString),
            "Swap": served(service.swap),
            "FetchPiece": served(service.fetch_piece),
            **self._groups.methods(),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)
