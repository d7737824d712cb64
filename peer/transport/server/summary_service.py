"""The served call that takes a peer's summary of itself."""

from __future__ import annotations

from peer.codes import Code
from peer.ports.handler import Handler
from peer.protocol.summary.book import FORGED
from peer.protocol.summary.values import MAX_SUMMARY_BYTES
from peer.transport.server.admission import Admission
from peer.transport.server.rate_limits import block_of_network, network_of
from peer.transport.wire.refusals import Context
from peer.v1 import exchange_pb2 as pb


class SummaryService:
    """Methods of the gRPC service."""

    def __init__(self, handler: Handler, gate: Admission) -> None:
        self._handler = handler
        self._gate = gate

    async def summary(self, request: pb.SummaryRequest, context: Context) -> pb.SummaryReply:
        caller = await self._gate.owner(context)
        block = block_of_network(network_of(await self._gate.origin(context)))
        dropped = self._handler.on_summary(caller, block, request.summary[: MAX_SUMMARY_BYTES + 1])
        if dropped == FORGED:
            await self._gate.turn_away(context, Code.RECORD, "a summary that your key did not sign", caller)
        return pb.SummaryReply(dropped=dropped)
