"""The call with which a peer gives a node of the run its summary."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import PartnerRefused
from peer.ports.handler import UNWANTED
from peer.protocol.messages import PeerRecord
from peer.transport.client.group_calls import Unary
from peer.v1 import exchange_pb2 as pb

MAX_WORD = 32


async def summary_call(unary: Unary, to: PeerRecord, raw: bytes, timeout_s: float) -> str:
    """As `peer.ports.transport.Transport.send_summary`."""
    try:
        reply = await unary(to, "Summary", pb.SummaryRequest(summary=raw), pb.SummaryReply, timeout_s)
    except PartnerRefused as refusal:
        if refusal.code != Code.UNKNOWN_CALL:
            raise
        return UNWANTED
    dropped: str = reply.dropped[:MAX_WORD]
    return dropped
