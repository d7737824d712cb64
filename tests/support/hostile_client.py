"""A client that speaks gRPC without our code, so that every part of a call can be wrong. For tests and benchmarks of
the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import grpc

from peer.identity import Identity, public_key_of
from peer.protocol.messages import WIRE_VERSION, PeerId, RunId
from peer.transport.calls.hello import HELLO_DOMAIN
from peer.transport.tls import root_of, server_name
from peer.transport.wire.refusals import REFUSAL_KEY, TOKEN_KEY
from peer.v1 import exchange_pb2 as pb

SERVICE = "/peer.v1.Exchange"


def channel_credentials(peer_id: str) -> tuple[grpc.ChannelCredentials, tuple[str, str]]:
    """Return the TLS of gRPC's own client, as older programs have it, which accepts this peer alone, and the option of
    a channel that belongs to it."""
    public = public_key_of(peer_id)
    credentials = grpc.ssl_channel_credentials(root_certificates=root_of(public))
    return credentials, ("grpc.ssl_target_name_override", server_name(public))


class Refused(Exception):
    """How a call ended. `code`: that of the typed refusal, otherwise the name of gRPC's status."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class HostileCaller:
    """A client with one TCP connection to one server, under one key. `more`: channel options, for example to buffer as
    much as honest callers do."""

    def __init__(
        self,
        endpoint: str,
        server: PeerId,
        run_id: RunId,
        identity: Identity | None = None,
        more: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.identity = identity or Identity.generate()
        self.me = PeerId(self.identity.peer_id)
        self._server, self._run_id = server, run_id
        credentials, pinned = channel_credentials(server)
        options = [pinned, ("grpc.use_local_subchannel_pool", 1), *more]
        self.channel: Any = grpc.aio.secure_channel(endpoint, credentials, options=options)

    async def __aenter__(self) -> HostileCaller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def hello(self, *, signed: bytes | None = None, signer: Identity | None = None, **changes: Any) -> bytes:
        """Do a Hello with changed fields, and return the token. `signed`: a message to sign instead of the right one.
        Raises Refused."""
        call = self.open_hello()
        opening: dict[str, Any] = {
            "run_id": self._run_id,
            "wire_min": WIRE_VERSION,
            "wire_max": WIRE_VERSION,
            "public_key": self.identity.public_key,
            "clock": time.time(),
        } | changes
        await self._say(call, pb.HelloRequest(open=pb.HelloOpen(**opening)))
        nonce = (await self._reply(call)).challenge.nonce
        message = signed or opening["run_id"] + public_key_of(self._server) + nonce
        proof = pb.HelloProof(signature=(signer or self.identity).sign(HELLO_DOMAIN, message))
        await self._say(call, pb.HelloRequest(proof=proof))
        reply = await self._reply(call)
        await call.done_writing()
        return bytes(reply.granted.token)

    def open_hello(self) -> Any:
        """Return a Hello stream on which nothing was sent yet."""
        method = self.channel.stream_stream(
            f"{SERVICE}/Hello", pb.HelloRequest.SerializeToString, pb.HelloReply.FromString
        )
        return method(timeout=30)

    def open(self, method: str, token: bytes) -> Any:
        """Return a raw stream of any method except Hello."""
        return self.channel.stream_stream(f"{SERVICE}/{method}")(metadata=((TOKEN_KEY, token),), timeout=80)

    async def unary(self, method: str, token: bytes, body: bytes = b"") -> bytes:
        """Make a raw unary call. Raises Refused."""
        try:
            reply = await self.channel.unary_unary(f"{SERVICE}/{method}")(
                body, metadata=((TOKEN_KEY, token),), timeout=10
            )
        except grpc.aio.AioRpcError as error:
            raise refused(error) from None
        return bytes(reply)

    async def swap(self, token: bytes, frames: list[bytes], *, hang: bool = False) -> Refused:
        """Send these frames and end the stream (`hang`: leave it open). Return how the call ended."""
        call = self.open("Swap", token)
        # the server ended the call in the middle
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for frame in frames:
                await call.write(frame)
            if not hang:
                await call.done_writing()
        return await ended(call)

    @staticmethod
    async def _say(call: Any, message: Any) -> None:
        try:
            await call.write(message)
        except grpc.aio.AioRpcError as error:  # the call may be refused before anything was sent
            raise refused(error) from None

    @staticmethod
    async def _reply(call: Any) -> Any:
        try:
            reply = await call.read()
        except grpc.aio.AioRpcError as error:
            raise refused(error) from None
        if reply is grpc.aio.EOF:
            raise await ended(call)
        return reply


async def ended(call: Any) -> Refused:
    """Read a call to its end. Return how it ended."""
    try:
        while await call.read() is not grpc.aio.EOF:
            continue
    except grpc.aio.AioRpcError as error:
        return refused(error)
    status = await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    return refused(grpc.aio.AioRpcError(*status))


def refused(error: grpc.aio.AioRpcError) -> Refused:
    """Return the typed refusal in a status, otherwise the status itself."""
    for key, value in error.trailing_metadata() or ():
        if key == REFUSAL_KEY and isinstance(value, bytes):
            refusal = pb.Refusal.FromString(value)
            return Refused(refusal.code, refusal.reason)
    return Refused(error.code().name, error.details() or "")
