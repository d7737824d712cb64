"""Manifest: the call that fetches the manifest of the run."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import PartnerRefused
from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerRecord
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb


async def invoke(channel: Channel, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
    """Return the bytes of the manifest and the operator's signature."""
    reply = await channel.unary(to, MANIFEST, pb.ManifestRequest(), timeout_s)
    return reply.manifest, reply.signature


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.ManifestRequest) -> pb.ManifestReply:
    if (held := services.handler.on_manifest()) is None:
        raise PartnerRefused(Code.NO_MANIFEST, "this peer has no manifest yet")
    return pb.ManifestReply(manifest=held[0], signature=held[1])


MANIFEST = Call(pb.ManifestRequest, pb.ManifestReply, serve, Purpose.JOINING)
