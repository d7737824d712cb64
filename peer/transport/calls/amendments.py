"""Amendments: fetch the operator's amendments that we lack."""

from __future__ import annotations

from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerRecord
from peer.transport.calls.call import Asker, Call, Channel, Host
from peer.v1 import exchange_pb2 as pb


async def ask(channel: Channel, to: PeerRecord, held: int, head: bytes, timeout_s: float) -> list[tuple[bytes, bytes]]:
    reply = await channel.unary(to, AMENDMENTS, pb.AmendmentsRequest(held=held, head=head), timeout_s)
    return [(amendment.raw, amendment.signature) for amendment in reply.amendments]


async def serve(host: Host, asker: Asker, request: pb.AmendmentsRequest) -> pb.AmendmentsReply:
    given = host.handler.on_amendments(request.held, request.head)
    return pb.AmendmentsReply(amendments=[pb.SignedAmendment(raw=raw, signature=sig) for raw, sig in given])


AMENDMENTS = Call(
    name="Amendments",
    request=pb.AmendmentsRequest,
    reply=pb.AmendmentsReply,
    serve=serve,
    purpose=Purpose.AMENDMENTS,
    even_banned=True,  # a banned peer learns from the amendments why it is banned
)
