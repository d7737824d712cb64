"""Amendments and Papers: the calls that fetch statements signed by the operator that we lack."""

from __future__ import annotations

from collections.abc import Sequence

from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerRecord
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb


async def invoke_amendments(
    channel: Channel, to: PeerRecord, held: int, head: bytes, timeout_s: float
) -> list[tuple[bytes, bytes]]:
    """Return the (bytes, signature) of amendments that we lack. `held`: how many we have. `head`: digest of the last of
    them."""
    reply = await channel.unary(to, AMENDMENTS, pb.AmendmentsRequest(held=held, head=head), timeout_s)
    return [(amendment.raw, amendment.signature) for amendment in reply.amendments]


async def serve_amendments(
    services: CallServices, caller: AuthenticatedCaller, request: pb.AmendmentsRequest
) -> pb.AmendmentsReply:
    given = services.handler.on_amendments(request.held, request.head)
    return pb.AmendmentsReply(amendments=[pb.SignedAmendment(raw=raw, signature=sig) for raw, sig in given])


async def invoke_papers(channel: Channel, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
    """Return the papers that we lack. `held`: digests of those that we have."""
    return list((await channel.unary(to, PAPERS, pb.PapersRequest(held=held), timeout_s)).papers)


async def serve_papers(
    services: CallServices, caller: AuthenticatedCaller, request: pb.PapersRequest
) -> pb.PapersReply:
    return pb.PapersReply(papers=services.handler.on_papers(request.held))


# banned peers may make this call, because the amendments tell them why they are banned
AMENDMENTS = Call(pb.AmendmentsRequest, pb.AmendmentsReply, serve_amendments, Purpose.AMENDMENTS, even_banned=True)
PAPERS = Call(pb.PapersRequest, pb.PapersReply, serve_papers, Purpose.PAPERS)
