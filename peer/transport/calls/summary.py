"""Summary: the call that sends our signed summary to a node of the operator."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.observe.control_bytes import Purpose
from peer.ports.handler import UNWANTED
from peer.protocol.messages import PeerRecord
from peer.protocol.summary.book import FORGED
from peer.protocol.summary.values import MAX_SUMMARY_BYTES
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb

MAX_WORD = 32
"""Most characters of a reason that are read."""


async def invoke(channel: Channel, to: PeerRecord, raw: bytes, timeout_s: float) -> str:
    """Return why the node dropped the summary; empty: it was stored. Peers of older versions, which do not know the
    call, count as `UNWANTED`."""
    try:
        reply = await channel.unary(to, SUMMARY, pb.SummaryRequest(summary=raw), timeout_s)
    except PartnerRefused as refusal:
        if refusal.code != Code.UNKNOWN_CALL:
            raise
        return UNWANTED
    return reply.dropped[:MAX_WORD]


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.SummaryRequest) -> pb.SummaryReply:
    dropped = services.handler.on_summary(caller.peer, caller.block, request.summary[: MAX_SUMMARY_BYTES + 1])
    if dropped == FORGED:
        raise BadPayload(Code.RECORD, "a summary that your key did not sign")
    return pb.SummaryReply(dropped=dropped)


SUMMARY = Call(pb.SummaryRequest, pb.SummaryReply, serve, Purpose.SUMMARIES)
