"""The served calls about receipts of swaps. They are small, and answered from what is at hand."""

from __future__ import annotations

from peer.errors import BadPayload
from peer.ports.handler import Handler
from peer.protocol.pair.receipt import MAX_SHOWN, SwapOpinion
from peer.transport.server.admission import Admission
from peer.transport.wire.refusals import Context
from peer.transport.wire.validation import receipt_request_of
from peer.v1 import exchange_pb2 as pb


class ReceiptService:
    """Methods of the gRPC service."""

    def __init__(self, handler: Handler, gate: Admission) -> None:
        self._handler = handler
        self._gate = gate

    async def receipt(self, request: pb.ReceiptRequest, context: Context) -> pb.ReceiptReply:
        caller = await self._gate.owner(context)
        try:
            signed = receipt_request_of(request)
        except BadPayload as error:
            await self._gate.turn_away(context, error.code, error.reason, caller)
        ours = self._handler.on_receipt(caller, signed)
        if ours is None:
            return pb.ReceiptReply()
        return pb.ReceiptReply(opinion=told(ours.opinion), signature=ours.signature)

    async def shown(self, request: pb.ShownRequest, context: Context) -> pb.ShownReply:
        await self._gate.owner(context)
        shown = self._handler.shown_receipts()[:MAX_SHOWN]
        receipts = [pb.ShownReceipt(statement=one.statement.to_bytes(), signature=one.signature) for one in shown]
        return pb.ShownReply(receipts=receipts)


def told(opinion: SwapOpinion) -> pb.SwapOpinion:
    """Encode an opinion for the wire."""
    return pb.SwapOpinion(tokens=opinion.tokens, accepted=opinion.accepted, gain=opinion.gain)
