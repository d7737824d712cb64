"""Held: ask a member of a group which state of a fragment it has now."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.observe.control_bytes import Purpose
from peer.ports.handler import GroupHandler
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import check_base, ids_of
from peer.protocol.messages import PeerRecord
from peer.transport.calls.call import Asker, Call, Channel, Host
from peer.v1 import exchange_pb2 as pb


async def ask(channel: Channel, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
    return base_of((await channel.unary(by, HELD, pb.HeldRequest(fragment=fragment), timeout_s)).base)


async def serve(host: Host, asker: Asker, request: pb.HeldRequest) -> pb.HeldReply:
    if (base := group_of(host).on_held(request.fragment)) is None:
        raise PartnerRefused(Code.NO_STATE, "no complete state of that fragment is held here (yet)")
    return pb.HeldReply(base=base_message(base))


def group_of(host: Host) -> GroupHandler:
    """Raises PartnerRefused."""
    if (group := host.handler.group) is None:
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


HELD = Call(
    name="Held",
    request=pb.HeldRequest,
    reply=pb.HeldReply,
    serve=serve,
    purpose=Purpose.GROUPS,
    waits=True,  # members ask it with little patience, also of peers that are gone
)
