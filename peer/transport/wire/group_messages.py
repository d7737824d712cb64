"""Conversion of a group's small messages between protobuf and our own values.

This module alone checks what a field may hold, and it does no I/O. Each function that reads another peer's bytes raises
BadPayload, whatever the bytes are."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload
from peer.protocol.group.quorum import Base
from peer.protocol.group.receipts import ShardReceipt, Vouchers
from peer.protocol.group.roster import (
    MAX_MEMBERS,
    MAX_ROSTER_BYTES,
    Join,
    JoinReply,
    JoinStatus,
    SignedRoster,
    check_base,
    ids_of,
)
from peer.protocol.group.shards import MAX_TOKENS, ContributionHeader, ShardResult
from peer.protocol.messages import MAX_ROUND, Reach, RoundKey
from peer.protocol.wire.frames import Kind, pack, unpack
from peer.transport.wire.validation import MAX_RATE, open_of, reach_of
from peer.v1 import exchange_pb2 as pb

MAX_WAIT_S = 10.0
"""Seconds that one call may ask to be held, at most."""


def join_request(join: Join) -> pb.JoinRoundRequest:
    key = join.key
    return pb.JoinRoundRequest(
        round=key.round,
        fragment=key.fragment,
        base=base_message(join.base),
        undialable=join.reach is not Reach.DIRECT,
        relayed=join.reach is Reach.RELAYED,
        wait_s=join.wait_s,
        given_roster=join.given.roster,
        given=[pb.Voucher(shard=v.shard, digest=v.digest, signature=v.signature) for v in join.given.shards],
    )


def join_of(request: pb.JoinRoundRequest) -> Join:
    if request.round >= MAX_ROUND or not 0 <= request.wait_s < 1e6:
        raise BadPayload(Code.REQUEST, "a round or a time that cannot be")
    key = RoundKey(request.round, request.fragment)
    given = _given_of(request)
    return Join(key, base_of(request.base), reach_of(request), min(request.wait_s, MAX_WAIT_S), given)


def _given_of(request: pb.JoinRoundRequest) -> Vouchers:
    if len(request.given) > MAX_MEMBERS or len(request.given_roster) != (32 if request.given else 0):
        raise BadPayload(Code.REQUEST, "more vouchers than there can be, or of no round")
    shards = tuple(ShardReceipt(voucher.shard, voucher.digest, voucher.signature) for voucher in request.given)
    for voucher in shards:
        if voucher.shard >= MAX_MEMBERS or len(voucher.digest) != 32 or len(voucher.signature) != 64:
            raise BadPayload(Code.REQUEST, "a voucher that cannot be")
    return Vouchers(request.given_roster, shards)


def base_message(base: Base) -> pb.GroupBase:
    return pb.GroupBase(digest=base.digest, electors=base.electors, since=base.since)


def base_of(message: pb.GroupBase) -> Base:
    try:
        base = Base(message.digest, ids_of(list(message.electors)), message.since)
        check_base(base)
    except ValueError as error:
        raise BadPayload(Code.REQUEST, f"a base that cannot be ({error})") from None
    return base


def join_reply(reply: JoinReply) -> pb.JoinRoundReply:
    message = pb.JoinRoundReply(told=reply.told.value, collecting=reply.collecting, reason=reply.reason[:200])
    if reply.roster is not None:
        message.roster, message.signature = reply.roster.raw, reply.roster.signature
    return message


def join_reply_of(message: pb.JoinRoundReply) -> JoinReply:
    try:
        told = JoinStatus(message.told)
    except ValueError:
        raise BadPayload(Code.VERDICT, f"the answer to a join was {message.told[:32]!r}") from None
    roster = None
    if told is JoinStatus.ROSTER:
        if len(message.roster) > MAX_ROSTER_BYTES or len(message.signature) != 64:
            raise BadPayload(Code.ROSTER, "a roster without a signature, or too large")
        roster = SignedRoster(message.roster, message.signature)
    return JoinReply(told, roster, message.collecting, message.reason[:200])


def contribute_open(opening: ContributionHeader, max_rate: float) -> bytes:
    """Encode the first frame of a contribution."""
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
    """Decode the first frame of a contribution: its header, and the sender's receive cap (bytes per second, 0:
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
    """Encode a frame of the owner: `send`, `wait` or `result`. `transfer` and `have` are those of the upload slot."""
    body = pb.ContributeReply(step=step, max_rate=max_rate, transfer=transfer, have=have)
    if result is not None:
        body.nbytes, body.signature = len(result.payload), result.signature
        body.named.extend(result.named)
    return pack(Kind.OPEN, 0, body.SerializeToString())


def contribute_reply_of(raw: bytes) -> pb.ContributeReply:
    body = pb.ContributeReply()
    _parse(raw, body)
    if body.step not in ("send", "wait", "result") or len(body.named) > MAX_MEMBERS:
        raise BadPayload(Code.FRAME, "an owner's answer holds what cannot be")
    if not 0 <= body.max_rate < MAX_RATE or len(body.signature) > 64:
        raise BadPayload(Code.FRAME, "an impossible rate or signature")
    return body


def is_parting(raw: bytes | None, transfer: int, nbytes: int) -> bool:
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
