"""What the callers' side of every streamed call needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from peer.errors import BadPayload
from peer.net.channels import Connection
from peer.net.refusal import TOKEN_KEY
from peer.net.stream import Caps, read_open, receive_payload
from peer.protocol.frames import MAX_CHUNK
from peer.protocol.payload import BufferSink
from peer.v1 import exchange_pb2 as pb

SERVICE = "peer.v1.Exchange"


class Ended:
    """Cancels a call that is left before its end, so that nothing of it stays behind."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        if not self._call.done():
            self._call.cancel()


def metadata(connection: Connection) -> tuple[tuple[str, bytes], ...]:
    return ((TOKEN_KEY, connection.token),)


def reader(stream: Any) -> Callable[[], Awaitable[bytes | None]]:
    """The messages of a stream, None at its end. Raises AioRpcError when it ended with a status."""

    async def read() -> bytes | None:
        message = await stream.read()
        if isinstance(message, bytes):
            return message
        if await stream.code() is not grpc.StatusCode.OK:  # why it ended: raises the status
            details = await stream.details()
            raise grpc.aio.AioRpcError(
                await stream.code(), await stream.initial_metadata(), await stream.trailing_metadata(), details
            )
        return None

    return read


async def fetch(connection: Connection, snapshot: str, piece: int, nbytes: int, caps: Caps) -> bytes:
    """The bytes of one piece, of just this length, of a snapshot. Raises BadPayload or what the stream raises."""
    request = pb.PieceRequest(
        snapshot=snapshot, piece=piece, max_rate=caps.down.rate or 0.0, max_chunk=MAX_CHUNK
    ).SerializeToString()
    stream = connection.bulk.unary_stream(f"/{SERVICE}/FetchPiece")(request, metadata=metadata(connection))
    with Ended(stream):
        opening = await read_open(reader(stream))
        if opening.nbytes != nbytes:
            raise BadPayload("length", f"{opening.nbytes} bytes announced, {nbytes} are due")
        sink = BufferSink(nbytes)
        await receive_payload(reader(stream), sink, caps)
        return bytes(sink.data)
