"""Probe: the call that asks a peer to dial us back, at the address from which it sees us call."""

from __future__ import annotations

from peer.observe.control_bytes import Purpose
from peer.protocol.endpoints import host_of_caller
from peer.protocol.messages import MAX_ENDPOINTS, PeerRecord, Probed
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb


async def invoke(channel: Channel, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
    request = pb.ProbeRequest(endpoints=endpoints[:MAX_ENDPOINTS], port=channel.port)
    # a new connection, because the open one may use another IP version than these endpoints
    reply, asked_at = await channel.unary_aside(by, PROBE, request, timeout_s)
    tried = tuple(endpoint[:270] for endpoint in reply.tried[:MAX_ENDPOINTS])
    return Probed(tried, tuple(e for e in tried if e in reply.answered), reply.reason[:500], asked_at)


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.ProbeRequest) -> pb.ProbeReply:
    named = list(request.endpoints[:MAX_ENDPOINTS])
    found = await services.dial_back.probe(caller.peer, host_of_caller(caller.origin), named, request.port)
    return pb.ProbeReply(tried=found.tried, answered=found.answered, reason=found.reason[:500])


PROBE = Call(pb.ProbeRequest, pb.ProbeReply, serve, Purpose.REACHABILITY, waits=True)
