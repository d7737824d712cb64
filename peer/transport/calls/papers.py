"""Papers: fetch the papers of the run that we lack."""

from __future__ import annotations

from collections.abc import Sequence

from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerRecord
from peer.transport.calls.call import Asker, Call, Channel, Host
from peer.v1 import exchange_pb2 as pb


async def ask(channel: Channel, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
    return list((await channel.unary(to, PAPERS, pb.PapersRequest(held=held), timeout_s)).papers)


async def serve(host: Host, asker: Asker, request: pb.PapersRequest) -> pb.PapersReply:
    return pb.PapersReply(papers=host.handler.on_papers(request.held))


PAPERS = Call(name="Papers", request=pb.PapersRequest, reply=pb.PapersReply, serve=serve, purpose=Purpose.PAPERS)
