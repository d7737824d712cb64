"""JoinRound: take part in a round of a group. The peer that is asked leads it, or tells who does."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload
from peer.observe.control_bytes import Purpose
from peer.protocol.group.receipts import ShardReceipt, Vouchers
from peer.protocol.group.roster import MAX_MEMBERS, MAX_ROSTER_BYTES, Join, JoinReply, JoinStatus, SignedRoster
from peer.protocol.messages import MAX_ROUND, PeerRecord, Reach, RoundKey
from peer.transport.calls.call import Asker, Call, Channel, Host
from peer.transport.calls.held import base_message, base_of, group_of
from peer.transport.wire.validation import reach_of
from peer.v1 import exchange_pb2 as pb

MAX_WAIT_S = 10.0
"""Seconds that one call may ask to be held, at most."""


async def ask(channel: Channel, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
    return join_reply_of(await channel.unary(leader, JOIN_ROUND, join_request(join), timeout_s))


async def serve(host: Host, asker: Asker, request: pb.JoinRoundRequest) -> pb.JoinRoundReply:
    group = group_of(host)
    return join_reply(await group.on_join(asker.peer, join_of(request)))


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
    """Decode a request. Raises BadPayload."""
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


def join_reply(reply: JoinReply) -> pb.JoinRoundReply:
    message = pb.JoinRoundReply(told=reply.told.value, collecting=reply.collecting, reason=reply.reason[:200])
    if reply.roster is not None:
        message.roster, message.signature = reply.roster.raw, reply.roster.signature
    return message


def join_reply_of(message: pb.JoinRoundReply) -> JoinReply:
    """Decode a reply. Raises BadPayload."""
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


JOIN_ROUND = Call(
    name="JoinRound",
    request=pb.JoinRoundRequest,
    reply=pb.JoinRoundReply,
    serve=serve,
    purpose=Purpose.GROUPS,
    waits=True,
)
