"""Receipt: the call in which the partners of a swap exchange their signatures about it. Shown: the call that asks a
peer for the receipts that others signed for it."""

from __future__ import annotations

from peer.codes import Code
from peer.errors import BadPayload
from peer.observe.control_bytes import Purpose
from peer.protocol.messages import MAX_ROUND, PeerRecord, RoundKey
from peer.protocol.pair.receipt import (
    MAX_SHOWN,
    MAX_STATEMENT,
    SIGNATURE_BYTES,
    ShownReceipt,
    SignedOpinion,
    SwapOpinion,
    SwapStatement,
)
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.v1 import exchange_pb2 as pb


async def invoke_receipt(
    channel: Channel, partner: PeerRecord, signed: SignedOpinion, timeout_s: float
) -> SignedOpinion | None:
    """Send our signed opinion of a swap and return the partner's. None: the partner has signed none yet."""
    key = signed.key
    request = pb.ReceiptRequest(
        round=key.round, fragment=key.fragment, opinion=opinion_message(signed.opinion), signature=signed.signature
    )
    return receipt_of(await channel.unary(partner, RECEIPT, request, timeout_s), key)


async def serve_receipt(
    services: CallServices, caller: AuthenticatedCaller, request: pb.ReceiptRequest
) -> pb.ReceiptReply:
    ours = services.handler.on_receipt(caller.peer, receipt_request_of(request))
    if ours is None:
        return pb.ReceiptReply()
    return pb.ReceiptReply(opinion=opinion_message(ours.opinion), signature=ours.signature)


async def invoke_shown(channel: Channel, by: PeerRecord, timeout_s: float) -> list[ShownReceipt]:
    return shown_of(await channel.unary(by, SHOWN, pb.ShownRequest(), timeout_s))


async def serve_shown(services: CallServices, caller: AuthenticatedCaller, request: pb.ShownRequest) -> pb.ShownReply:
    shown = services.handler.shown_receipts()[:MAX_SHOWN]
    receipts = [pb.ShownReceipt(statement=one.statement.to_bytes(), signature=one.signature) for one in shown]
    return pb.ShownReply(receipts=receipts)


def opinion_message(opinion: SwapOpinion) -> pb.SwapOpinion:
    """Encode an opinion for the wire."""
    return pb.SwapOpinion(tokens=opinion.tokens, accepted=opinion.accepted, gain=opinion.gain)


def opinion_of(sent: pb.SwapOpinion) -> SwapOpinion:
    """Decode a partner's opinion of a swap. Raises BadPayload."""
    opinion = SwapOpinion(sent.tokens, sent.accepted, sent.gain)
    if not opinion.is_possible():
        raise BadPayload(Code.RECEIPT, "an impossible opinion of a swap")
    return opinion


def receipt_request_of(request: pb.ReceiptRequest) -> SignedOpinion:
    """Decode the opinion that a partner signed. Raises BadPayload."""
    if len(request.signature) != SIGNATURE_BYTES or request.round > MAX_ROUND:
        raise BadPayload(Code.RECEIPT, f"a signature has {SIGNATURE_BYTES} bytes, and a round at most {MAX_ROUND}")
    return SignedOpinion(RoundKey(request.round, request.fragment), opinion_of(request.opinion), request.signature)


def receipt_of(reply: pb.ReceiptReply, key: RoundKey) -> SignedOpinion | None:
    """Decode the partner's signed opinion of the swap `key`; None: the reply contains none. Raises BadPayload."""
    if not reply.signature:
        return None
    if len(reply.signature) != SIGNATURE_BYTES:
        raise BadPayload(Code.RECEIPT, f"a signature of {len(reply.signature)} bytes")
    return SignedOpinion(key, opinion_of(reply.opinion), reply.signature)


def shown_of(reply: pb.ShownReply) -> list[ShownReceipt]:
    """Decode the receipts that a peer presents. Their signatures are not checked here. Raises BadPayload."""
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


RECEIPT = Call(pb.ReceiptRequest, pb.ReceiptReply, serve_receipt, Purpose.RECEIPTS)
SHOWN = Call(pb.ShownRequest, pb.ShownReply, serve_shown, Purpose.RECEIPTS)
