"""Peers: the call that sends our own directory record to a peer, and fetches records that the peer knows."""

from __future__ import annotations

from peer.observe.control_bytes import Purpose
from peer.ports.directory import Shown
from peer.protocol.messages import MAX_RECORD_BYTES, MAX_SHOWN_RECORDS, PeerRecord
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb


async def invoke(channel: Channel, to: PeerRecord, own: Shown, timeout_s: float) -> list[Shown]:
    request = pb.PeersRequest(record=own if isinstance(own, bytes) else b"")
    return list((await channel.unary(to, PEERS, request, timeout_s)).records[:MAX_SHOWN_RECORDS])


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.PeersRequest) -> pb.PeersReply:
    given = services.handler.on_peers(caller.peer, request.record[: MAX_RECORD_BYTES + 1])
    return pb.PeersReply(records=[record for record in given if isinstance(record, bytes)][:MAX_SHOWN_RECORDS])


PEERS = Call(pb.PeersRequest, pb.PeersReply, serve, Purpose.PEERS)
