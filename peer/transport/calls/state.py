"""State: the call that asks a donor which snapshot of its state it would send us."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerRecord, Piece, StateIndex
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.transport.wire.validation import MAX_SNAPSHOT_NAME
from peer.v1 import exchange_pb2 as pb

MAX_PIECE_COUNT = 2**20


async def invoke(
    channel: Channel, donor: PeerRecord, timeout_s: float, fresh: bool = False, wanted: str = ""
) -> StateIndex:
    """Return the donor's description of a snapshot. `fresh`: of its present state, rather than one it offered before.
    `wanted`: the snapshot of this name, if the donor still keeps it."""
    request = pb.StateRequest(fresh=fresh, wanted=wanted)
    return index_of(await channel.unary(donor, STATE, request, timeout_s))


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.StateRequest) -> pb.StateReply:
    if why := services.uploads.busy_reason(caller.peer, caller.block, proven=caller.proven):
        raise PartnerRefused(Code.BUSY, *why)
    index = services.handler.on_state(request.fresh, request.wanted[:MAX_SNAPSHOT_NAME])
    if index is None:
        raise PartnerRefused(Code.NO_STATE, "this peer has no complete state to give (yet)")
    nbytes = sum(piece.nbytes for piece in index.pieces)
    services.uploads.set_state_nbytes(nbytes)
    services.limits.set_state_nbytes(nbytes)
    pieces = [pb.StatePiece(first=p.first, count=p.count, nbytes=p.nbytes, digest=p.digest) for p in index.pieces]
    return pb.StateReply(snapshot=index.snapshot, round=index.round, layout_digest=index.layout_digest, pieces=pieces)


def index_of(reply: pb.StateReply) -> StateIndex:
    """Decode a donor's description of its snapshot. Sizes are bounded, but not yet compared with our layout. Raises
    BadPayload."""
    if len(reply.pieces) > MAX_PIECE_COUNT or len(reply.snapshot) > MAX_SNAPSHOT_NAME:
        raise BadPayload(Code.STATE, "a state beyond all bounds is described")
    pieces = tuple(Piece(p.first, p.count, p.nbytes, p.digest) for p in reply.pieces)
    return StateIndex(reply.snapshot, reply.round, reply.layout_digest, pieces)


STATE = Call(pb.StateRequest, pb.StateReply, serve, Purpose.JOINING)
