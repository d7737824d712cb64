"""Encodes and decodes the messages of a contribution to a shard.

All checks of their fields are here, without I/O. Each function that decodes another peer's bytes raises only
BadPayload, for any input."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload
from peer.protocol.group.roster import MAX_MEMBERS
from peer.protocol.group.shards import MAX_TOKENS, ContributionHeader, ShardResult
from peer.protocol.messages import MAX_ROUND, RoundKey
from peer.protocol.wire.frames import Kind, pack, unpack
from peer.transport.wire.validation import MAX_RATE, open_of
from peer.v1 import exchange_pb2 as pb


def contribute_open(opening: ContributionHeader, max_rate: float) -> bytes:
    """Encode the first frame of a contribution. `max_rate`: our receive cap in bytes per second; 0: none."""
    key = opening.key
    body = pb.ContributeOpen(
        round=key.round,
        fragment=key.fragment,
        roster=opening.roster,
        shard=opening.shard,
        tokens=opening.tokens,
        nbytes=opening.nbytes,
        max_rate=max_rate,
        transfer=opening.transfer,
        have=opening.have,
        signature=opening.signature,
    )
    return pack(Kind.OPEN, 0, body.SerializeToString())


def opening_of(raw: bytes) -> tuple[ContributionHeader, float]:
    """Decode the first frame of a contribution: its header, and the sender's receive cap in bytes per second (0:
    none)."""
    body = pb.ContributeOpen()
    _parse(raw, body)
    if body.round >= MAX_ROUND or len(body.roster) != 32 or not 0 <= body.max_rate < MAX_RATE:
        raise BadPayload(Code.FRAME, "the opening of a contribution holds what cannot be")
    if body.nbytes and not 0 < body.tokens < MAX_TOKENS:
        raise BadPayload(Code.TOKENS, f"a contribution of {body.tokens} tokens")
    if body.have and not body.transfer:
        raise BadPayload(Code.HAVE, "a part of a result that belongs to no transfer")
    if len(body.signature) not in (0, 64):
        raise BadPayload(Code.FRAME, f"a signature of {len(body.signature)} bytes")
    key = RoundKey(body.round, body.fragment)
    terms = body.roster, body.shard, body.tokens, body.nbytes, body.transfer, body.have, body.signature
    return ContributionHeader(key, *terms), body.max_rate


def contribute_reply(
    step: str,
    result: ShardResult | None = None,
    max_rate: float = 0.0,
    transfer: int = 0,
    have: int = 0,
) -> bytes:
    """Encode a frame of the owner. `step`: `send`, `wait` or `result`. `transfer` and `have`: as in the upload slot."""
    body = pb.ContributeReply(step=step, max_rate=max_rate, transfer=transfer, have=have)
    if result is not None:
        body.nbytes, body.signature = len(result.payload), result.signature
        body.named.extend(result.named)
    return pack(Kind.OPEN, 0, body.SerializeToString())


def contribute_reply_of(raw: bytes) -> pb.ContributeReply:
    """Decode a frame of the owner."""
    body = pb.ContributeReply()
    _parse(raw, body)
    if body.step not in ("send", "wait", "result") or len(body.named) > MAX_MEMBERS:
        raise BadPayload(Code.FRAME, "an owner's answer holds what cannot be")
    if not 0 <= body.max_rate < MAX_RATE or len(body.signature) > 64:
        raise BadPayload(Code.FRAME, "an impossible rate or signature")
    return body


def is_farewell(raw: bytes | None, transfer: int, nbytes: int) -> bool:
    """Return whether a member confirms with this frame that it has the complete result. Never raises."""
    try:
        body = open_of(raw or b"")
    except BadPayload:
        return False
    return transfer != 0 and (body.swap, body.have) == (transfer, nbytes)


def _parse(raw: bytes, into: pb.ContributeOpen | pb.ContributeReply) -> None:
    frame = unpack(raw)
    if frame.kind is not Kind.OPEN:
        raise BadPayload(Code.ORDER, f"{frame.kind.name} where OPEN is due")
    try:
        into.ParseFromString(frame.body)
    except DecodeError:
        raise BadPayload(Code.FRAME, "the opening message cannot be read") from None
