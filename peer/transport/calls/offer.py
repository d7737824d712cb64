"""Offer: the call that proposes a swap in a round to a peer, or withdraws a proposal."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload
from peer.observe.control_bytes import Purpose
from peer.protocol.messages import Answer, Offer, PeerRecord, Reach, RoundKey, Verdict
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.transport.wire.refusals import eta_of
from peer.transport.wire.validation import reach_of
from peer.v1 import exchange_pb2 as pb


async def invoke(channel: Channel, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer:
    request = pb.OfferRequest(
        round=offer.key.round,
        fragment=offer.key.fragment,
        withdraw=offer.withdraw,
        undialable=offer.reach is not Reach.DIRECT,
        relayed=offer.reach is Reach.RELAYED,
        eta_s=offer.eta_s,
        proven=offer.proven,
    )
    reply = await channel.unary(to, OFFER, request, timeout_s)
    try:
        verdict = Verdict(reply.verdict)
    except ValueError:
        raise BadPayload(Code.VERDICT, f"{to.peer_id} answered {reply.verdict[:32]!r}") from None
    return Answer(verdict, eta_of(reply.eta_s), reply.reason[:200], reach_of(reply), reply.proven)


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.OfferRequest) -> pb.OfferReply:
    key = RoundKey(request.round, request.fragment)
    offer = Offer(key, request.withdraw, reach_of(request), eta_of(request.eta_s), request.proven)
    answer = services.handler.on_offer(caller.peer, offer)
    return pb.OfferReply(
        verdict=answer.verdict.value,
        eta_s=answer.eta_s,
        reason=answer.reason[:200],
        undialable=answer.reach is not Reach.DIRECT,
        relayed=answer.reach is Reach.RELAYED,
        proven=answer.proven,
    )


OFFER = Call(pb.OfferRequest, pb.OfferReply, serve, Purpose.OFFERS)
