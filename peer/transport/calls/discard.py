"""Discard: the call that measures the upload rate of this machine's line. The other peer counts our bytes and discards
them.

A newcomer measures before it joins, with a key that is still unknown. The server's limits therefore apply per address
block and to all callers together."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.protocol.messages import DISCARD_BYTES, DISCARD_CHUNK, PeerRecord
from peer.protocol.token_bucket import Rate, TokenBuckets
from peer.transport.calls.call import StreamedCall
from peer.transport.client.call_client import CallClient
from peer.transport.client.connections import Connection
from peer.transport.client.streams import CancelOnExit, metadata, reader
from peer.transport.server.admission import STEP_TIMEOUT_S, Admission
from peer.transport.server.call_places import CallPlaces
from peer.transport.server.rate_limits import Caller, block_of_network
from peer.transport.wire.pacing import chunk_size
from peer.transport.wire.payload_stream import Caps
from peer.transport.wire.refusals import Context, refuse
from peer.v1 import exchange_pb2 as pb

DISCARD = StreamedCall("Discard")
SENDING_S = 4.0
"""Seconds after which no further chunk is sent. The bytes on their way still have to arrive."""
PLACES = 2
"""Measurements served at once."""
WITHIN_S = 30.0
"""Timeout of a measurement on the server, in seconds."""
OF_BLOCK = Rate(DISCARD_BYTES / 60, 4 * DISCARD_BYTES)
"""Bytes that the callers of one address block may send."""
OF_ALL = Rate(DISCARD_BYTES / 20, 8 * DISCARD_BYTES)
"""Bytes that all callers together may send."""
EVERYBODY = "everybody"
"""Key of the token bucket of all callers."""


@dataclass(frozen=True, slots=True)
class LineRate:
    """Bytes that arrived, and the seconds they took."""

    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / max(self.seconds, 1e-3)


class UploadTest:
    """The client side: sends bytes to a peer and measures how long they take."""

    def __init__(self, call_client: CallClient, caps: Caps) -> None:
        self._call_client = call_client
        self._caps = caps

    async def measure(self, to: PeerRecord, timeout_s: float, nbytes: int = DISCARD_BYTES) -> LineRate:
        """Send at most `nbytes` within our own upload cap, and return how many arrived in which time.

        Raises PartnerLost, PartnerRefused (`unknown_call` from a peer of an older version) or BadPayload."""
        return await self._call_client.with_token(to, lambda connection: self._send(connection, nbytes), timeout_s)

    async def _send(self, connection: Connection, nbytes: int) -> LineRate:
        stream = connection.bulk.stream_stream(DISCARD.path)(metadata=metadata(connection))
        with CancelOnExit(stream):
            began, sent, filler = time.monotonic(), 0, bytes(chunk_size(self._caps.up.rate, DISCARD_CHUNK))
            while sent < min(nbytes, DISCARD_BYTES) and time.monotonic() - began < SENDING_S:
                await self._caps.up.wait_turn(len(filler))
                await stream.write(filler)
                sent += len(filler)
            await stream.done_writing()
            raw = await reader(stream)()
            took = time.monotonic() - began
        arrived = _count(raw, sent)
        trip = connection.round_trip_s if math.isfinite(connection.round_trip_s) else 0.0
        return LineRate(arrived, max(took - trip, took / 10))


def _count(raw: bytes | None, sent: int) -> int:
    """Decode the reply: the number of bytes that arrived of those `sent`. Raises PartnerLost or BadPayload."""
    if raw is None:
        raise PartnerLost("the measurement ended without an answer")
    try:
        arrived = int(pb.DiscardReply.FromString(raw).nbytes)
    except DecodeError:
        raise BadPayload(Code.REPLY, "the answer to a measurement cannot be read") from None
    if not 0 < arrived <= sent:
        raise BadPayload(Code.REPLY, f"{arrived} bytes are said to have arrived, {sent} were sent")
    return arrived


class DiscardService:
    """The server side: a method of the gRPC service."""

    def __init__(self, admission: Admission, caps: Caps) -> None:
        self._admission = admission
        self._caps = caps
        self._places = CallPlaces(PLACES, 0, "measurements")
        self._of_block: TokenBuckets[str] = TokenBuckets(OF_BLOCK)
        self._of_all: TokenBuckets[str] = TokenBuckets(OF_ALL)

    async def discard(self, _: object, context: Context) -> None:
        """Read a caller's bytes, at most `DISCARD_BYTES`, and reply with their number."""
        async with self._admission.admitted(context) as caller:
            block = block_of_network(caller.address)
            await self._charge(block, context)
            try:
                async with self._places.held(block, timeout_s=WITHIN_S):
                    received = await self._read(caller, context)
                    async with asyncio.timeout(STEP_TIMEOUT_S):
                        await context.write(pb.DiscardReply(nbytes=received).SerializeToString())
            except PartnerRefused as busy:
                await refuse(context, busy.code, busy.reason, busy.eta_s)
            except TimeoutError:
                await refuse(context, Code.TIMEOUT, f"a measurement takes {WITHIN_S:.0f} s at most")

    async def _charge(self, block: str, context: Context) -> None:
        """Charge a whole measurement to the limits, as its size is not known in advance. Refuses the call when a limit
        is exceeded."""
        now = self._admission.now()
        wait_s = self._of_all.lacks_s(EVERYBODY, now, DISCARD_BYTES) or self._of_block.take(block, now, DISCARD_BYTES)
        if wait_s > 0:
            await refuse(context, Code.BUSY, f"too many measurements; try again in {wait_s:.0f} s", wait_s)
        self._of_all.take(EVERYBODY, now, DISCARD_BYTES)

    async def _read(self, caller: Caller, context: Context) -> int:
        """Return the number of bytes received. Our own download cap applies to them."""
        received = 0
        while received < DISCARD_BYTES:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                chunk = await context.read()
            if not isinstance(chunk, bytes):
                break
            if len(chunk) > DISCARD_CHUNK:
                reason = f"a chunk of {len(chunk)} bytes; at most {DISCARD_CHUNK} are read"
                await self._admission.turn_away(context, Code.REQUEST, reason, caller.peer)
            received += len(chunk)
            await self._caps.down.wait_turn(len(chunk))
        return received
