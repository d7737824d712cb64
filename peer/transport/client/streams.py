"""The client side of the streamed calls Swap and FetchPiece."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.protocol.messages import SwapReport
from peer.protocol.wire.frames import MAX_CHUNK
from peer.protocol.wire.payload import BufferSink
from peer.transport.calls.call import FETCH_PIECE, SWAP
from peer.transport.client.connections import Connection
from peer.transport.wire.payload_stream import Caps, SwapTerms, read_open, receive_payload, swap_payloads
from peer.transport.wire.refusals import TOKEN_KEY, translate
from peer.transport.wire.resumption import Answered, TransferProgress
from peer.transport.wire.striping import Stripe, Stripes
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")
Stream = Callable[[Connection, Answered], Awaitable[T]]
"""Runs one stream of a transfer, which may take several."""


class CancelOnExit:
    """Context manager that cancels a call that is unfinished at the end of the block, so that gRPC frees it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        if not self._call.done():
            self._call.cancel()


def metadata(connection: Connection) -> tuple[tuple[str, bytes], ...]:
    """Return the gRPC metadata with the connection's token."""
    return ((TOKEN_KEY, connection.token),)


def reader(stream: Any) -> Callable[[], Awaitable[bytes | None]]:
    """Return a function that reads the next message of a stream, and returns None at its end.

    The function raises AioRpcError when the stream ended with a failure."""

    async def read() -> bytes | None:
        message = await stream.read()
        if isinstance(message, bytes):
            return message
        if await stream.code() is not grpc.StatusCode.OK:
            raise await _status(stream)
        return None

    return read


async def _status(call: Any) -> grpc.aio.AioRpcError:
    """Return the error with which a call ended."""
    details = await call.details()
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details
    )


async def swap(
    connection: Connection, answered: Answered, *, terms: SwapTerms, progress: TransferProgress, caps: Caps
) -> SwapReport:
    """Run one stream of a swap, with its additional streams, on the dialling side.

    Raises BadPayload, PartnerLost or an error of the stream."""
    stream = connection.bulk.stream_stream(SWAP.path)(metadata=metadata(connection))
    with contextlib.ExitStack() as calls:
        calls.enter_context(CancelOnExit(stream))

        def open_stripe(number: int) -> tuple[Stripe, bytes]:
            call = connection.stripe(number).stream_stream(SWAP.path)(metadata=metadata(connection))
            calls.enter_context(CancelOnExit(call))
            return _stripe(call, progress), terms.stripe(number, progress)

        stripes = Stripes(reader(stream), stream.write, open_stripe, connection.round_trip_s, connection.stripes)
        try:
            report = await swap_payloads(stripes.read, stripes.write, terms, caps, None, progress, answered, stripes)
            if progress.agreed:
                await stripes.write(progress.farewell(sent_all=report.sent_all))
            await stream.done_writing()
            if report.sent_all:
                await stripes.end()
            return report
        finally:
            connection.observe_stripes(stripes.count)
            await stripes.close()


def _stripe(call: Any, progress: TransferProgress) -> Stripe:
    """Wrap an additional stream of a swap. Its failure raises PartnerLost, after which the swap continues over fewer
    streams."""
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
        except (grpc.aio.UsageError, asyncio.InvalidStateError):  # the call has already ended
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
    """Fetch the missing bytes of one piece of a snapshot into `sink`. Raises BadPayload or an error of the stream."""
    had = progress.reader.received
    request = pb.PieceRequest(
        snapshot=snapshot, piece=piece, max_rate=caps.down.rate or 0.0, max_chunk=MAX_CHUNK, offset=had
    ).SerializeToString()
    stream = connection.bulk.unary_stream(FETCH_PIECE.path)(request, metadata=metadata(connection))
    with CancelOnExit(stream):
        opening = await read_open(reader(stream))
        if opening.nbytes != sink.nbytes:
            raise BadPayload(Code.LENGTH, f"{opening.nbytes} bytes announced, {sink.nbytes} are due")
        progress.begin_stream(opening.swap, 0, 0)
        if opening.have != had:
            raise BadPayload(Code.HAVE, f"bytes from {opening.have} on are announced, those from {had} on are due")
        answered()
        await receive_payload(reader(stream), sink, caps, progress.reader)
