"""Measures the upload of this machine's line: another peer counts bytes of ours, and throws them away."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost
from peer.protocol.messages import DISCARD_BYTES, DISCARD_CHUNK, PeerRecord
from peer.transport.calls.call import DISCARD
from peer.transport.client.calls import Calls
from peer.transport.client.connections import Connection
from peer.transport.client.streams import Ended, metadata, reader
from peer.transport.wire.pacing import chunk_size
from peer.transport.wire.payload_stream import Caps
from peer.v1 import exchange_pb2 as pb

SENDING_S = 4.0
"""Seconds after which no further chunk is sent. What is under way then still has to arrive."""


@dataclass(frozen=True, slots=True)
class LineRate:
    """Bytes that crossed the line, and the seconds that they took."""

    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / max(self.seconds, 1e-3)


class UploadTest:
    """Sends bytes to other peers for the sake of the time that they take."""

    def __init__(self, calls: Calls, caps: Caps) -> None:
        self._calls = calls
        self._caps = caps

    async def measure(self, to: PeerRecord, timeout_s: float, nbytes: int = DISCARD_BYTES) -> LineRate:
        """Send at most `nbytes` within our own upload cap, and return what arrived in which time.

        Raises PartnerLost, PartnerRefused (`unknown_call` by a peer of an older version) or BadPayload."""
        return await self._calls.with_token(to, lambda connection: self._send(connection, nbytes), timeout_s)

    async def _send(self, connection: Connection, nbytes: int) -> LineRate:
        stream = connection.bulk.stream_stream(DISCARD.path)(metadata=metadata(connection))
        with Ended(stream):
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
    if raw is None:
        raise PartnerLost("the measurement ended without an answer")
    try:
        arrived = int(pb.DiscardReply.FromString(raw).nbytes)
    except DecodeError:
        raise BadPayload(Code.REPLY, "the answer to a measurement cannot be read") from None
    if not 0 < arrived <= sent:
        raise BadPayload(Code.REPLY, f"{arrived} bytes are said to have arrived, {sent} were sent")
    return arrived
