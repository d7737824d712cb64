"""Reserve: the call by which a closed peer holds a place at a relay. The place lasts as long as the call, over which
the relay announces circuits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.observe.control_bytes import ControlMeter, Purpose
from peer.protocol.messages import PeerId, RelayAttestation
from peer.protocol.swarm.relay_word import is_stale
from peer.signed_record import is_well_formed
from peer.transport.calls.call import StreamedCall
from peer.transport.client.connections import Connection
from peer.transport.client.streams import CancelOnExit, metadata, reader
from peer.transport.relay.relay_server import RelayServer, Reservation
from peer.transport.relay.wire import SLIP_BYTES
from peer.transport.server.admission import Admission
from peer.transport.server.rate_limits import block_of_network
from peer.transport.wire.refusals import Context, refuse
from peer.v1 import exchange_pb2 as pb

RESERVE = StreamedCall("Reserve", Purpose.OTHER)
ALIVE_EVERY_S = 25.0
"""Seconds between two heartbeats of the relay to a closed peer. Home routers drop the state of an idle connection after
some minutes at the earliest (RFC 5382 requires two hours)."""
SILENT_S = 1.6 * ALIVE_EVERY_S
"""Seconds without a heartbeat after which the relay counts as lost."""

OnGrant = Callable[[float, RelayAttestation | None], None]
"""Called with a relay's cap in bytes per second, and its signed statement of the address block from which we call. None
for the statement: unchanged."""
SignWord = Callable[[PeerId, str], RelayAttestation]
"""Signs a statement of the address block from which a closed peer calls."""


async def hold(
    connection: Connection, granted: OnGrant, called: Callable[[bytes], None], control: ControlMeter
) -> None:
    """Hold a reservation until the relay ends it, which raises an error of the stream, PartnerLost or BadPayload.

    `granted` is called for every message of the relay. `called` is called with the slip of each circuit that waits for
    us. `control` counts the bytes."""
    method = connection.control.unary_stream(RESERVE.path, response_deserializer=control.decoder(Purpose.OTHER, bytes))
    stream = method(b"", metadata=metadata(connection))
    with CancelOnExit(stream):
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
            granted(reply.rate, _statement_of(reply))
            if reply.slip:
                called(reply.slip)


def _reply_of(raw: bytes) -> pb.ReserveReply:
    """Decode a message of the relay. Raises BadPayload."""
    try:
        reply = pb.ReserveReply.FromString(raw)
    except DecodeError:
        raise BadPayload(Code.RELAY, "what the relay tells cannot be read") from None
    if len(reply.slip) not in (0, SLIP_BYTES) or not 0 < reply.rate < 1e12:
        raise BadPayload(Code.RELAY, "what the relay tells makes no sense")
    return reply


def _statement_of(reply: pb.ReserveReply) -> RelayAttestation | None:
    """Return the relay's statement of our address block; None: the message has none. Raises BadPayload."""
    if not reply.HasField("word"):
        return None
    word = RelayAttestation(reply.word.block, reply.word.until, reply.word.signature)
    if not is_well_formed(word):
        raise BadPayload(Code.RELAY, "the relay's word on our address makes no sense")
    return word


class ReserveService:
    """The server side: a method of the gRPC service."""

    def __init__(self, relay_server: RelayServer, admission: Admission, word: SignWord) -> None:
        """`word`: signs statements of the address blocks from which closed peers call."""
        self._relay_server = relay_server
        self._admission = admission
        self._word = word

    async def reserve(self, _: object, context: Context) -> None:
        """Hold a place for a closed peer during its call, and announce circuits to it. The place ends when the peer is
        banned."""
        async with self._admission.admitted(context) as caller:
            assert caller.peer is not None
            await self._admission.request(context, caller.peer)
            proven = self._admission.reputation.is_proven(caller.peer)
            try:
                held = self._relay_server.reserve(caller.peer, block_of_network(caller.address), proven=proven)
            except PartnerRefused as refused:
                await refuse(context, refused.code, refused.reason)
            try:
                await self._announce(held, block_of_network(caller.address), context)
            finally:
                self._relay_server.release(held)
            await refuse(context, Code.BUSY, "your place at this relay went to another peer")

    async def _announce(self, held: Reservation, block: str, context: Context) -> None:
        """Announce circuits and send heartbeats until the place is lost or the peer excluded. A peer that does not read
        loses the place. `block`: the address block from which it calls."""
        word: RelayAttestation | None = None
        lost = asyncio.create_task(held.lost.wait())
        try:
            while not lost.done():
                if is_stale(word, self._admission.now()):
                    word = self._word(held.peer, block)
                    said = pb.RelayWord(block=word.block, until=word.until, signature=word.signature)
                    await self._send(pb.ReserveReply(rate=self._relay_server.rate, word=said), context)
                call = asyncio.create_task(held.calls.get())
                try:
                    await asyncio.wait({lost, call}, timeout=ALIVE_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                    slip = call.result() if call.done() else b""
                finally:
                    call.cancel()
                if (out := self._admission.exclusion(held.peer)) is not None:
                    await refuse(context, *out)
                if not lost.done():
                    await self._send(pb.ReserveReply(rate=self._relay_server.rate, slip=slip), context)
        finally:
            lost.cancel()

    async def _send(self, reply: pb.ReserveReply, context: Context) -> None:
        try:
            async with asyncio.timeout(ALIVE_EVERY_S):
                await context.write(reply.SerializeToString())
        except TimeoutError:
            await refuse(context, Code.TIMEOUT, "you read nothing of what this relay tells")
