"""JoinRound: the call by which a member joins a round of a group at its leader, or learns from another member who
leads. Held: the call that asks a member for the base of a fragment that it holds now."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.observe.control_bytes import Purpose
from peer.ports.handler import GroupHandler
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
from peer.protocol.messages import MAX_ROUND, PeerRecord, Reach, RoundKey
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.transport.wire.validation import reach_of
from peer.v1 import exchange_pb2 as pb

MAX_WAIT_S = 10.0
"""Longest time in seconds for which a caller may ask the server to delay its reply."""


async def invoke_join_round(channel: Channel, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
    return join_reply_of(await channel.unary(leader, JOIN_ROUND, join_request(join), timeout_s))


async def serve_join_round(
    services: CallServices, caller: AuthenticatedCaller, request: pb.JoinRoundRequest
) -> pb.JoinRoundReply:
    group = group_of(services)
    return join_reply(await group.on_join(caller.peer, join_of(request)))


def join_request(join: Join) -> pb.JoinRoundRequest:
    """Encode a request to join a round."""
    key = join.key
    return pb.JoinRoundRequest(
        round=key.round,
        fragment=key.fragment,
        base=base_message(join.base),
        undialable=join.reach is not Reach.DIRECT,
        relayed=join.reach is Reach.RELAYED,
        wait_s=join.wait_s,
        given_roster=join.vouchers.roster,
        given=[pb.Voucher(shard=v.shard, digest=v.digest, signature=v.signature) for v in join.vouchers.shards],
    )


def join_of(request: pb.JoinRoundRequest) -> Join:
    """Decode a request to join a round. Raises BadPayload."""
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
    message = pb.JoinRoundReply(told=reply.status.value, collecting=reply.collecting, reason=reply.reason[:200])
    if reply.roster is not None:
        message.roster, message.signature = reply.roster.raw, reply.roster.signature
    return message


def join_reply_of(message: pb.JoinRoundReply) -> JoinReply:
    """Decode the reply. Raises BadPayload."""
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


async def invoke_held(channel: Channel, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
    return base_of((await channel.unary(by, HELD, pb.HeldRequest(fragment=fragment), timeout_s)).base)


async def serve_held(services: CallServices, caller: AuthenticatedCaller, request: pb.HeldRequest) -> pb.HeldReply:
    if (base := group_of(services).on_held(request.fragment)) is None:
        raise PartnerRefused(Code.NO_STATE, "no complete state of that fragment is held here (yet)")
    return pb.HeldReply(base=base_message(base))


def group_of(services: CallServices) -> GroupHandler:
    """Return the handler of group calls. Raises PartnerRefused if this peer takes part in no group."""
    if (group := services.handler.group) is None:
        raise PartnerRefused(Code.NO_GROUP, "this peer takes part in no group (yet)")
    return group


def base_message(base: Base) -> pb.GroupBase:
    return pb.GroupBase(digest=base.digest, electors=base.electors, since=base.since)


def base_of(message: pb.GroupBase) -> Base:
    """Decode a base. Raises BadPayload."""
    try:
        base = Base(message.digest, ids_of(list(message.electors)), message.since)
        check_base(base)
    except ValueError as error:
        raise BadPayload(Code.REQUEST, f"a base that cannot be ({error})") from None
    return base


JOIN_ROUND = Call(pb.JoinRoundRequest, pb.JoinRoundReply, serve_join_round, Purpose.GROUPS, waits=True)
# callers use a short deadline, as the peer may be gone: `waits` makes the simulator set a timer for it
HELD = Call(pb.HeldRequest, pb.HeldReply, serve_held, Purpose.GROUPS, waits=True)
