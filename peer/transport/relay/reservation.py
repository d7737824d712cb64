"""The closed peer's side of a reservation: it holds a call to a relay, which tells of circuits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost
from peer.observe.control_bytes import ControlMeter, Purpose
from peer.protocol.messages import RelayWord
from peer.signed_record import is_well_formed
from peer.transport.calls.call import RESERVE
from peer.transport.client.connections import Connection
from peer.transport.client.streams import Ended, metadata, reader
from peer.transport.relay.service import ALIVE_EVERY_S
from peer.transport.relay.wire import SLIP_BYTES
from peer.v1 import exchange_pb2 as pb

SILENT_S = 1.6 * ALIVE_EVERY_S
"""Seconds without a sign of life after which a relay counts as lost."""


Granted = Callable[[float, RelayWord | None], None]
"""Told a relay's cap, in bytes per second, and its word on where we call from; None: as before."""


async def hold(
    connection: Connection, granted: Granted, called: Callable[[bytes], None], control: ControlMeter
) -> None:
    """Hold a reservation until the relay ends it, which raises an error of the stream, PartnerLost or BadPayload.

    `granted` is told what the relay says, whenever it says something. `called` is told the slip of each circuit that
    waits for us. `control` counts what comes."""
    method = connection.control.unary_stream(RESERVE.path, response_deserializer=control.decoder(Purpose.OTHER, bytes))
    stream = method(b"", metadata=metadata(connection))
    with Ended(stream):
        read = reader(stream)
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    raw = await read()
            except TimeoutError:
                raise PartnerLost(f"the relay gave no sign of life for {SILENT_S:.0f} s") from None
            if raw is None:
                raise PartnerLost("the relay ended the reservation")
            reply = _reply_of(raw)
            granted(reply.rate, _word_of(reply))
            if reply.slip:
                called(reply.slip)


def _reply_of(raw: bytes) -> pb.ReserveReply:
    """Raises BadPayload."""
    try:
        reply = pb.ReserveReply.FromString(raw)
    except DecodeError:
        raise BadPayload(Code.RELAY, "what the relay tells cannot be read") from None
    if len(reply.slip) not in (0, SLIP_BYTES) or not 0 < reply.rate < 1e12:
        raise BadPayload(Code.RELAY, "what the relay tells makes no sense")
    return reply


def _word_of(reply: pb.ReserveReply) -> RelayWord | None:
    """Raises BadPayload."""
    if not reply.HasField("word"):
        return None
    word = RelayWord(reply.word.block, reply.word.until, reply.word.signature)
    if not is_well_formed(word):
        raise BadPayload(Code.RELAY, "the relay's word on our address makes no sense")
    return word
