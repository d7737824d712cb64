"""Vouch: the call that asks a peer whether it reaches another peer, which does not answer us."""

from __future__ import annotations

from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerId, PeerRecord, Vouched
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.transport.server.indirect_probe import MAX_PEER_ID
from peer.v1 import exchange_pb2 as pb


async def invoke(channel: Channel, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
    reply = await channel.unary(by, VOUCH, pb.VouchRequest(about=about), timeout_s)
    return Vouched(reply.reaches if reply.known else None, reply.reason[:200])


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.VouchRequest) -> pb.VouchReply:
    about = PeerId(request.about[:MAX_PEER_ID])
    vouched = await services.indirect_probe.vouch(caller.peer, about, *services.handler.on_vouch(about))
    return pb.VouchReply(known=vouched.reaches is not None, reaches=bool(vouched.reaches), reason=vouched.reason[:200])


VOUCH = Call(pb.VouchRequest, pb.VouchReply, serve, Purpose.FAILURES, waits=True)
