"""The listening side of the transport: the sockets, gRPC's limits, and the handler of every call."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc

from peer.errors import AddressError
from peer.observe.control_bytes import ControlMeter, Purpose
from peer.protocol.messages import Way
from peer.protocol.wire.frames import MAX_CHUNK
from peer.transport.calls.call import CONTRIBUTE, FETCH_PIECE, SERVICE, SWAP
from peer.transport.calls.discard import DISCARD, DiscardService
from peer.transport.calls.hello import HELLO
from peer.transport.calls.registry import every_call
from peer.transport.calls.reserve import RESERVE, ReserveService, SignWord
from peer.transport.client.channels import CHANNEL_OPTIONS
from peer.transport.config import TransportConfig
from peer.transport.front.callers import CallerTable
from peer.transport.front.front import AcceptingFront
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.relay.pipe import Stream
from peer.transport.relay.relay_server import RelayServer
from peer.transport.server.bind import bind
from peer.transport.server.group_service import GroupService
from peer.transport.server.service import ExchangeService
from peer.transport.tls import RenewedLeaf
from peer.transport.wire.payload_stream import Caps
from peer.transport.wire.refusals import served
from peer.v1 import exchange_pb2 as pb

CLOSE_S = 3.0
"""Longest wait in seconds for gRPC to stop."""
MAX_CALLS = 256
"""Most calls that gRPC serves at once."""
SERVER_OPTIONS = [
    *(option for option in CHANNEL_OPTIONS if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MAX_CHUNK + 2**10),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_connection_idle_ms", 600_000),  # a new connection costs as much as half an hour of keepalive pings
    ("grpc.keepalive_time_ms", 120_000),  # detects callers that vanished without closing
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
]


class ExchangeServer:
    """One peer's server. Call `bind` and `serve` first, and `close` at the end."""

    def __init__(
        self,
        config: TransportConfig,
        service: ExchangeService,
        caps: Caps,
        callers: CallerTable,
        relay_server: RelayServer,
        relay_word: SignWord,
    ) -> None:
        self._config = config
        self._service = service
        self._group_service = GroupService(service.call_services, service.admission, caps)
        self._reserve_service = ReserveService(relay_server, service.admission, relay_word)
        self._discard_service = DiscardService(service.admission, caps)
        self._relay_server = relay_server
        self._callers = callers
        self._front: AcceptingFront | None = None
        self._server: grpc.aio.Server | None = None
        self._inside: InnerSocket | None = None
        self._bound: list[socket.socket] = []
        """Bound sockets until `serve`."""

    def bind(self, host: str, port: int, *more_hosts: str) -> int:
        """Reserve one port on all hosts and return it. Callers are served only after `serve`.

        Raises AddressError when the port is occupied or a host is not an address of this machine."""
        self._bound, port = bind([host, *more_hosts], port)
        return port

    async def serve(self) -> None:
        """Start serving on the bound port. Raises AddressError when no socket for gRPC can be created."""
        sockets, self._bound = self._bound, []
        assert sockets, "the port is bound first"
        async with contextlib.AsyncExitStack() as undo:
            for one in sockets:
                undo.callback(one.close)
            undo.push_async_callback(self.close)
            inside = await self._serve_inside()
            self._front = AcceptingFront(
                self._callers,
                RenewedLeaf(self._config.identity),
                self._relay_server,
                self._service.admission.reputation.is_proven,
            )
            await self._front.open(sockets, inside)
            undo.pop_all()

    async def close(self) -> None:
        """End all calls and stop listening. Calls get half a second."""
        for one in self._bound:
            one.close()
        self._bound.clear()
        if self._front is not None:
            await self._front.stop_listening()
        await self._relay_server.close()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):  # gRPC's stop may never return; the process ends anyway
                async with asyncio.timeout(CLOSE_S):
                    await self._server.stop(0.5)
        if self._front is not None:
            await self._front.close()
        if self._inside is not None:
            self._inside.close()

    async def serve_circuit(self, stream: Stream, way: Way) -> None:
        """Serve a caller that came over a circuit, until it disconnects."""
        assert self._front is not None, "nobody is called before the server listens"
        await self._front.serve_circuit(stream, way)

    async def _serve_inside(self) -> InnerSocket:
        """Start gRPC behind the front. Return the socket on which it listens."""
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
        service, control = self._service, self._config.control
        streams = {
            HELLO: served(service.handshake.serve, pb.HelloReply.SerializeToString),
            RESERVE: served(self._reserve_service.reserve),
            SWAP: served(service.swap),
            FETCH_PIECE: served(service.fetch_piece),
            CONTRIBUTE: served(self._group_service.contribute),
            DISCARD: served(self._discard_service.discard),
        }
        methods = {call.name: _counted(call.purpose, method, control) for call, method in streams.items()}
        for call in every_call():
            methods[call.name] = _counted(call.purpose, service.admission.unary(call, service.call_services), control)
        return grpc.method_handlers_generic_handler(SERVICE, methods)


def _counted(purpose: Purpose | None, method: grpc.RpcMethodHandler, control: ControlMeter) -> grpc.RpcMethodHandler:
    """Return a handler that counts the messages of a control call; the handler itself for other calls."""
    if purpose is None:
        return method
    decode = control.decoder(purpose, method.request_deserializer or bytes)
    encode = control.encoder(purpose, method.response_serializer or bytes)
    return grpc.stream_stream_rpc_method_handler(method.stream_stream, decode, encode)
