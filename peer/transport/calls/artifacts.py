"""Artifacts: the call that asks a peer which of some artifacts it would send us."""

from __future__ import annotations

from collections.abc import Sequence

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.observe.control_bytes import Purpose
from peer.protocol.messages import DIGEST_BYTES, MAX_ARTIFACTS, PeerRecord
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb


async def invoke(channel: Channel, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
    """Return for each digest whether the peer would send this artifact. A peer of an older version, which does not know
    the call, counts as sending none."""
    assert len(digests) <= MAX_ARTIFACTS
    try:
        reply = await channel.unary(holder, ARTIFACTS, pb.ArtifactsRequest(digests=digests), timeout_s)
    except PartnerRefused as refusal:
        if refusal.code != Code.UNKNOWN_CALL:
            raise
        return [False] * len(digests)
    return held_of(reply, len(digests))


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.ArtifactsRequest) -> pb.ArtifactsReply:
    digests = digests_of(request)
    if why := services.uploads.refusal_reason(proven=caller.proven):
        raise PartnerRefused(Code.BUSY, *why)
    return pb.ArtifactsReply(held=services.handler.on_artifacts(digests))


def digests_of(request: pb.ArtifactsRequest) -> list[bytes]:
    """Decode the requested digests. Raises BadPayload."""
    digests: Sequence[bytes] = request.digests
    if len(digests) > MAX_ARTIFACTS:
        raise BadPayload(Code.REQUEST, f"{len(digests)} artifacts are asked about; at most {MAX_ARTIFACTS} may be")
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise BadPayload(Code.REQUEST, f"a digest has {DIGEST_BYTES} bytes")
    return list(digests)


def held_of(reply: pb.ArtifactsReply, asked: int) -> list[bool]:
    """Decode the reply to a request about `asked` artifacts. Raises BadPayload."""
    if len(reply.held) != asked:
        raise BadPayload(Code.ARTIFACTS, f"{len(reply.held)} answers to {asked} questions")
    return list(reply.held)


ARTIFACTS = Call(pb.ArtifactsRequest, pb.ArtifactsReply, serve, Purpose.JOINING)
