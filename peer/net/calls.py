"""What the callers' side of every streamed call needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from peer.errors import BadPayload
from peer.net.channels import Connection
from peer.net.refusal import TOKEN_KEY
from peer.net.resuming import Answered, Progress
from peer.net.stream import Caps, Terms, read_open, receive_payload, swap_payloads
from peer.protocol.frames import MAX_CHUNK
from peer.protocol.messages import SwapReport
from peer.protocol.payload import BufferSink
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")
SERVICE = "peer.v1.Exchange"
Stream = Callable[[Connection, Answered], Awaitable[T]]
"""One stream of a transfer that may take several."""


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


async def swap(
    connection: Connection, answered: Answered, *, terms: Terms, progress: Progress, caps: Caps
) -> SwapReport:
    """One stream of a swap, of the side that dials. Raises BadPayload, PartnerLost or what the stream raises."""
    stream = connection.bulk.stream_stream(f"/{SERVICE}/Swap")(metadata=metadata(connection))
    with Ended(stream):
        report = await swap_payloads(reader(stream), stream.write, terms, caps, None, progress, answered)
        if progress.agreed:
            await stream.write(progress.parting(sent_all=report.sent_all))
        await stream.done_writing()
        if report.sent_all:
            await stream.read()  # the end of the stream: the partner has read everything we sent
        return report


async def fetch(
    connection: Connection,
    answered: Answered,
    *,
    snapshot: str,
    piece: int,
    sink: BufferSink,
    progress: Progress,
    caps: Caps,
) -> None:
    """What is missing of one piece of a snapshot, into `sink`. Raises BadPayload or what the stream raises."""
    had = progress.reader.received
    request = pb.PieceRequest(
        snapshot=snapshot, piece=piece, max_rate=caps.down.rate or 0.0, max_chunk=MAX_CHUNK, offset=had
    ).SerializeToString()
    stream = connection.bulk.unary_stream(f"/{SERVICE}/FetchPiece")(request, metadata=metadata(connection))
    with Ended(stream):
        opening = await read_open(reader(stream))
        if opening.nbytes != sink.nbytes:
            raise BadPayload("length", f"{opening.nbytes} bytes announced, {sink.nbytes} are due")
        progress.meet(opening.swap, 0, 0)
        if opening.have != had:
            raise BadPayload("have", f"bytes from {opening.have} on are announced, those from {had} on are due")
        answered()
        await receive_payload(reader(stream), sink, caps, progress.reader)
