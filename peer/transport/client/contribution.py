"""The member's side of one contribution to a shard, and of fetching the shard's result.

A contribution uses as many streams as it needs (`peer.transport.wire.resumption`). On each stream, both sides first
send how many verified bytes they hold, and each then receives the rest.

On failure: if the owner supports resumption, a broken stream is followed by another one for at most ten seconds. Then
the contribution fails with the first error. An owner that sends two different results causes BadPayload."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import grpc

from peer.aio.events import Latch
from peer.aio.tasks import cancel_and_wait
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerSilent
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink
from peer.protocol.messages import PeerRecord, Way
from peer.protocol.wire.payload import Source
from peer.transport.calls.call import CONTRIBUTE
from peer.transport.client.call_client import CallClient
from peer.transport.client.connections import Connection
from peer.transport.client.streams import CancelOnExit, metadata, reader
from peer.transport.wire.group_messages import contribute_open, contribute_reply_of
from peer.transport.wire.payload_stream import STALL_S, Caps, receive_payload, send_payload
from peer.transport.wire.resumption import Answered, TransferProgress
from peer.transport.wire.striping import Read
from peer.v1 import exchange_pb2 as pb

T = TypeVar("T")


async def contribute(
    call_client: CallClient,
    owner: PeerRecord,
    opening: ContributionHeader,
    source: Source | None,
    sink: ResultSink,
    timeout_s: float,
    caps: Caps,
) -> Receipt:
    """As `peer.ports.transport.GroupCalls.contribute`."""
    assert opening.nbytes == (source.nbytes if source is not None else 0)
    began, connected, way = time.monotonic(), Latch(), Way()
    contributing = ContributionCall(opening, source, sink, caps)

    async def stream(connection: Connection, answered: Answered) -> None:
        nonlocal way
        connected.set()
        await contributing.stream(connection, answered)
        way = connection.way(mapped=owner.mapped)

    await _if_connected(connected, call_client.resumed(owner, stream, contributing.progress, timeout_s))
    return Receipt(opening.nbytes, sink.nbytes, time.monotonic() - began, way)


async def _if_connected(connected: Latch, call: Awaitable[T]) -> T:
    """Return the result of the call, which may take long. Raises PartnerSilent when `connected` is not set within
    `STALL_S`."""
    running = asyncio.ensure_future(call)
    try:
        either: set[asyncio.Future[Any]] = {running, connected.future}
        await asyncio.wait(either, timeout=STALL_S, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not connected.is_set():
            raise PartnerSilent(f"the owner of a shard could not be reached within {STALL_S:.0f} s")
        return await running
    finally:
        await cancel_and_wait(running)


class ContributionCall:
    """A running contribution, over all its streams. Without a `source` it only fetches the result."""

    def __init__(self, opening: ContributionHeader, source: Source | None, sink: ResultSink, caps: Caps) -> None:
        self.progress = TransferProgress(0, secrets.randbits(63) + 1, patient=False)
        self._opening = replace(opening, transfer=self.progress.number)
        self._source = source
        self._sink = sink
        self._caps = caps
        self._result: tuple[tuple[int, ...], bytes, int] | None = None
        """Named contributors, signature and size in bytes of the result, once it has begun."""

    async def stream(self, connection: Connection, answered: Answered) -> None:
        """Run one stream until the result is complete. Raises BadPayload, PartnerLost or an error of the stream."""
        stream = connection.bulk.stream_stream(CONTRIBUTE.path)(metadata=metadata(connection))
        opening = replace(self._opening, have=self.progress.reader.received)
        with CancelOnExit(stream):
            await stream.write(contribute_open(opening, self._caps.down.rate or 0.0))
            await self._until_result(stream, answered)
            await receive_payload(reader(stream), self._sink, self._caps, self.progress.reader)
            if self.progress.agreed:
                await self._confirm(stream)

    async def _until_result(self, stream: Any, answered: Answered) -> None:
        """Send our contribution when the owner requests it. Return when the result begins."""
        read, sending, met = reader(stream), None, False
        try:
            while True:
                reply = contribute_reply_of(await _reply(read))
                if not met:
                    self.progress.begin_stream(reply.transfer, reply.have, self._opening.nbytes)
                    met = True
                    answered()
                if reply.step == "send" and sending is None and self._source is not None:
                    sending = asyncio.create_task(self._send(stream, self._source, reply))
                if reply.step == "result":
                    self._begin(reply)
                    if sending is not None:  # not cancelled, because cancelling its last write would end the call
                        await asyncio.wait({sending}, timeout=STALL_S)
                    return
        finally:
            if sending is not None:
                await cancel_and_wait(sending)  # its error is dropped: when the connection breaks, reading fails too

    async def _send(self, stream: Any, source: Source, reply: pb.ContributeReply) -> None:
        await send_payload(
            stream.write, source, self._caps, reply.max_rate, writer=self.progress.writer, have=reply.have
        )

    def _begin(self, reply: pb.ContributeReply) -> None:
        """Record that the result begins or continues. Raises BadPayload if it differs from the one begun before.

        Nothing is sent from now on, because the result may be written over the memory of our contribution."""
        result = tuple(reply.named), reply.signature, reply.nbytes
        if self._result is None:
            self._sink.begins(*result)
            self.progress.expect(reply.nbytes)
        elif result != self._result:
            raise BadPayload(Code.RESULT, "the owner of the shard gives another result than before")
        self._result, self._source = result, None

    async def _confirm(self, stream: Any) -> None:
        """Confirm to the owner that the result is complete, and wait until the owner has read that."""
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            async with asyncio.timeout(STALL_S):
                await stream.write(self.progress.farewell(sent_all=True))
                await stream.done_writing()
                await stream.read()


async def _reply(read: Read) -> bytes:
    """Read the next message. Raises PartnerSilent after `STALL_S`, PartnerLost at the end of the stream."""
    try:
        async with asyncio.timeout(STALL_S):
            raw = await read()
    except TimeoutError:
        raise PartnerSilent(f"the owner of a shard said nothing for {STALL_S:.0f} s", Code.SILENT) from None
    if raw is None:
        raise PartnerLost("the stream ended before the result came")
    return raw
