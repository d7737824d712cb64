"""Conversion of other peers' small messages into our own values. This module alone checks what a field may hold, and it
does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload
from peer.protocol.messages import DIGEST_BYTES, MAX_ARTIFACTS, MAX_ROUND, Piece, Reach, RoundKey, StateIndex
from peer.protocol.pair.receipt import (
    MAX_SHOWN,
    MAX_STATEMENT,
    SIGNATURE_BYTES,
    ShownReceipt,
    SignedOpinion,
    SwapOpinion,
    SwapStatement,
)
from peer.protocol.wire.frames import Kind, unpack
from peer.v1 import exchange_pb2 as pb

MAX_PIECE_COUNT = 2**20
MAX_SNAPSHOT_NAME = 128
MAX_REQUEST = 4096
A_DAY_S = 86400.0
"""Seconds that two clocks may differ while the manifest is not known. No manifest allows more."""
MAX_RATE = 1e15
"""Bytes per second, beyond any real rate."""


class _TellsReach(Protocol):
    undialable: bool
    relayed: bool


def reach_of(said: _TellsReach) -> Reach:
    """Decode how another peer can be called, as it says."""
    if not said.undialable:
        return Reach.DIRECT
    return Reach.RELAYED if said.relayed else Reach.NONE


def index_of(reply: pb.StateReply) -> StateIndex:
    """Decode a donor's description of its snapshot. It is bounded, but not yet compared with our layout. Raises
    BadPayload."""
    if len(reply.pieces) > MAX_PIECE_COUNT or len(reply.snapshot) > MAX_SNAPSHOT_NAME:
        raise BadPayload(Code.STATE, "a state beyond all bounds is described")
    pieces = tuple(Piece(p.first, p.count, p.nbytes, p.digest) for p in reply.pieces)
    return StateIndex(reply.snapshot, reply.round, reply.layout_digest, pieces)


def piece_request_of(raw: bytes) -> pb.PieceRequest:
    """Decode a joiner's request for a piece. Raises BadPayload."""
    if len(raw) > MAX_REQUEST:
        raise BadPayload(Code.REQUEST, f"a request of {len(raw)} bytes; at most {MAX_REQUEST} are read")
    try:
        request = pb.PieceRequest.FromString(raw)
    except DecodeError:
        raise BadPayload(Code.REQUEST, "the request cannot be read") from None
    if not 0 <= request.max_rate < MAX_RATE:
        raise BadPayload(Code.REQUEST, "an impossible rate")
    return request


def digests_of(request: pb.ArtifactsRequest) -> list[bytes]:
    """Decode which artifacts are asked about. Raises BadPayload."""
    digests: Sequence[bytes] = request.digests
    if len(digests) > MAX_ARTIFACTS:
        raise BadPayload(Code.REQUEST, f"{len(digests)} artifacts are asked about; at most {MAX_ARTIFACTS} may be")
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise BadPayload(Code.REQUEST, f"a digest has {DIGEST_BYTES} bytes")
    return list(digests)


def held_of(reply: pb.ArtifactsReply, asked: int) -> list[bool]:
    """Decode which artifacts are held, of so many that were asked about. Raises BadPayload."""
    if len(reply.held) != asked:
        raise BadPayload(Code.ARTIFACTS, f"{len(reply.held)} answers to {asked} questions")
    return list(reply.held)


def opinion_of(sent: pb.SwapOpinion) -> SwapOpinion:
    """Decode a partner's opinion of a swap. Raises BadPayload."""
    opinion = SwapOpinion(sent.tokens, sent.accepted, sent.gain)
    if not opinion.is_possible():
        raise BadPayload(Code.RECEIPT, "an impossible opinion of a swap")
    return opinion


def receipt_request_of(request: pb.ReceiptRequest) -> SignedOpinion:
    """Decode what a partner signed about a swap. Raises BadPayload."""
    if len(request.signature) != SIGNATURE_BYTES or request.round > MAX_ROUND:
        raise BadPayload(Code.RECEIPT, f"a signature has {SIGNATURE_BYTES} bytes, and a round at most {MAX_ROUND}")
    return SignedOpinion(RoundKey(request.round, request.fragment), opinion_of(request.opinion), request.signature)


def receipt_of(reply: pb.ReceiptReply, key: RoundKey) -> SignedOpinion | None:
    """Decode the answer to what we signed about a swap. Raises BadPayload."""
    if not reply.signature:
        return None
    if len(reply.signature) != SIGNATURE_BYTES:
        raise BadPayload(Code.RECEIPT, f"a signature of {len(reply.signature)} bytes")
    return SignedOpinion(key, opinion_of(reply.opinion), reply.signature)


def shown_of(reply: pb.ShownReply) -> list[ShownReceipt]:
    """Decode the receipts that a peer shows. Raises BadPayload."""
    if len(reply.receipts) > MAX_SHOWN:
        raise BadPayload(Code.RECEIPT, f"{len(reply.receipts)} receipts; at most {MAX_SHOWN} are shown")
    shown = []
    for receipt in reply.receipts:
        if len(receipt.statement) > MAX_STATEMENT or len(receipt.signature) != SIGNATURE_BYTES:
            raise BadPayload(Code.RECEIPT, "a receipt of an impossible length")
        try:
            shown.append(ShownReceipt(SwapStatement.from_bytes(receipt.statement), receipt.signature))
        except ValueError as error:
            raise BadPayload(Code.RECEIPT, f"a receipt that cannot be read: {error}") from None
    return shown


def open_of(raw: bytes) -> pb.SwapOpen:
    """Decode the frame that opens a stream of a payload. Raises BadPayload."""
    frame = unpack(raw)
    if frame.kind is not Kind.OPEN:
        raise BadPayload(Code.ORDER, f"{frame.kind.name} where OPEN is due")
    try:
        return pb.SwapOpen.FromString(frame.body)
    except DecodeError:
        raise BadPayload(Code.FRAME, "the opening message cannot be read") from None


def offset_of(challenge: pb.HelloChallenge, before: float, after: float, limit_s: float) -> float:
    """Return the other peer's clock minus ours in seconds, from our times at both ends of the call.

    Raises BadPayload when the offset is not finite or beyond `limit_s`. Offsets correct our clock, and NaN would stop
    it for good."""
    offset = challenge.clock - (before + after) / 2
    if not abs(offset) <= limit_s:
        raise BadPayload(
            Code.CLOCK, f"its clock differs from ours by {offset:.0f} s; at most {limit_s:.0f} s are taken"
        )
    return offset
