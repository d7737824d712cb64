"""What the callers' side of every streamed call needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.protocol.messages import SwapReport
from peer.protocol.wire.frames import MAX_CHUNK
from peer.protocol.wire.payload import BufferSink
from peer.transport.client.connections import Connection
from peer.transport.wire.payload_stream import Caps, SwapTerms, read_open, receive_payload, swap_payloads
from peer.transport.wire.refusals import TOKEN_KEY, translate
from peer.transport.wire.resumption import Answered, TransferProgress
from peer.transport.wire.striping import Stripe, Stripes
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
        if await stream.code() is not grpc.StatusCode.OK:
            raise await _status(stream)
        return None

    return read


async def _status(call: Any) -> grpc.aio.AioRpcError:
    """With what a call has ended."""
    details = await call.details()
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details
    )


async def swap(
    connection: Connection, answered: Answered, *, terms: SwapTerms, progress: TransferProgress, caps: Caps
) -> SwapReport:
    """One stream of a swap and those beside it, of the side that dials. Raises BadPayload, PartnerLost or what the
    stream raises."""
    stream = connection.bulk.stream_stream(f"/{SERVICE}/Swap")(metadata=metadata(connection))
    with contextlib.ExitStack() as calls:
        calls.enter_context(Ended(stream))

        def open_stripe(number: int) -> tuple[Stripe, bytes]:
            call = connection.stripe(number).stream_stream(f"/{SERVICE}/Swap")(metadata=metadata(connection))
            calls.enter_context(Ended(call))
            return _stripe(call, progress), terms.stripe(number, progress)

        stripes = Stripes(reader(stream), stream.write, open_stripe, connection.round_trip_s, connection.stripes)
        try:
            report = await swap_payloads(stripes.read, stripes.write, terms, caps, None, progress, answered, stripes)
            if progress.agreed:
                await stripes.write(progress.parting(sent_all=report.sent_all))
            await stream.done_writing()
            if report.sent_all:
                await stripes.end()
            return report
        finally:
            connection.observe_stripes(stripes.count)
            await stripes.close()


def _stripe(call: Any, progress: TransferProgress) -> Stripe:
    """One more stream of a swap. That it fails is no word on the swap itself, which goes on over fewer."""
    read_on = reader(call)

    async def read() -> bytes | None:
        try:
            return await read_on()
        except grpc.aio.AioRpcError as error:
            raise _stripe_lost(error, progress) from None

    async def write(frame: bytes) -> None:
        try:
            await call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise _stripe_lost(error, progress) from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError):  # it had ended before
            raise _stripe_lost(await _status(call), progress) from None

    return Stripe(read, write)


def _stripe_lost(error: grpc.aio.AioRpcError, progress: TransferProgress) -> PartnerLost:
    lost = translate(error, "one of several streams")
    progress.stripe_broke(refused=isinstance(lost, PartnerRefused))
    return PartnerLost(str(lost))


async def fetch(
    connection: Connection,
    answered: Answered,
    *,
    snapshot: str,
    piece: int,
    sink: BufferSink,
    progress: TransferProgress,
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
