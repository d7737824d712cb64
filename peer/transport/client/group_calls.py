"""Calls among the members of a group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from peer.aio.events import Latch
from peer.aio.tasks import cancel_and_wait
from peer.errors import PartnerSilent
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Join, JoinReply
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink
from peer.protocol.messages import PIECE_BYTES, PeerRecord, Way
from peer.protocol.wire.payload import Source
from peer.transport.calls import held, join_round
from peer.transport.calls.call import Channel
from peer.transport.client.connections import Connection
from peer.transport.client.contribution import ContributionCall
from peer.transport.client.streams import Stream
from peer.transport.wire.payload_stream import STALL_S, Caps
from peer.transport.wire.resumption import Answered, TransferProgress

T = TypeVar("T")


class ResumedCall(Protocol):
    """Way to run a transfer: with a Hello where one is due, over as many connections as it takes, bounded by a
    timeout."""

    def __call__(
        self, to: PeerRecord, stream: Stream[None], progress: TransferProgress, timeout_s: float, /
    ) -> Awaitable[None]: ...


class Fetch(Protocol):
    """Fetches a piece of a snapshot, of exactly this length."""

    def __call__(
        self, donor: PeerRecord, snapshot: str, piece: int, nbytes: int, timeout_s: float, /
    ) -> Awaitable[bytes]: ...


class GroupCalls:
    """The `GroupTransport` interface over gRPC."""

    def __init__(self, channel: Channel, resumed: ResumedCall, fetch: Fetch, caps: Caps) -> None:
        self._channel = channel
        self._resumed = resumed
        self._fetch = fetch
        self._caps = caps

    async def join_round(self, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
        return await join_round.ask(self._channel, leader, join, timeout_s)

    async def held(self, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
        return await held.ask(self._channel, by, fragment, timeout_s)

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        assert 0 < nbytes <= PIECE_BYTES
        return await self._fetch(donor, snapshot, part, nbytes, timeout_s)

    async def contribute(
        self, owner: PeerRecord, opening: ContributionHeader, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        assert opening.nbytes == (source.nbytes if source is not None else 0)
        began, connected = time.monotonic(), Latch()
        contributing = ContributionCall(opening, source, sink, self._caps)

        way = Way()

        async def stream(connection: Connection, answered: Answered) -> None:
            nonlocal way
            connected.set()
            await contributing.stream(connection, answered)
            way = connection.way(mapped=owner.mapped)

        await _if_connected(connected, self._resumed(owner, stream, contributing.progress, timeout_s))
        return Receipt(opening.nbytes, sink.nbytes, time.monotonic() - began, way)


async def _if_connected(connected: Latch, call: Awaitable[T]) -> T:
    """Return the result of the call, which may take long. Raise PartnerSilent when `connected` is not set in time."""
    running = asyncio.ensure_future(call)
    try:
        either: set[asyncio.Future[Any]] = {running, connected.future}
        await asyncio.wait(either, timeout=STALL_S, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not connected.is_set():
            raise PartnerSilent(f"the owner of a shard could not be reached within {STALL_S:.0f} s")
        return await running
    finally:
        await cancel_and_wait(running)
