"""Malformed receipt messages are rejected when they are decoded."""

from __future__ import annotations

import pytest

from peer.errors import BadPayload
from peer.protocol.messages import MAX_ROUND, RoundKey
from peer.protocol.pair.receipt import MAX_GAIN, MAX_SHOWN, MAX_STATEMENT, MAX_TOKENS, SwapOpinion
from peer.transport.calls.receipts import opinion_message, receipt_of, receipt_request_of, shown_of
from peer.v1 import exchange_pb2 as pb
from tests.support.signed_receipts import Signing

OPINION = SwapOpinion(100, accepted=True, gain=MAX_GAIN)
STATEMENT = Signing().said(Signing().id, 3, OPINION).to_bytes()
GOOD = pb.ReceiptRequest(round=3, fragment=1, opinion=opinion_message(OPINION), signature=b"s" * 64)


def test_a_good_one_is_taken() -> None:
    signed = receipt_request_of(GOOD)
    assert (signed.key, signed.opinion, signed.signature) == (RoundKey(3, 1), OPINION, b"s" * 64)
    assert receipt_of(pb.ReceiptReply(), RoundKey(3, 1)) is None
    assert receipt_of(pb.ReceiptReply(opinion=opinion_message(OPINION), signature=b"s" * 64), RoundKey(3, 1)) == signed


@pytest.mark.parametrize(
    "request_",
    [
        pb.ReceiptRequest(signature=b"s" * 63),
        pb.ReceiptRequest(signature=b"s" * 65),
        pb.ReceiptRequest(signature=b"s" * 64, round=MAX_ROUND + 1),
        pb.ReceiptRequest(signature=b"s" * 64, opinion=pb.SwapOpinion(tokens=MAX_TOKENS + 1)),
        pb.ReceiptRequest(signature=b"s" * 64, opinion=pb.SwapOpinion(gain=MAX_GAIN + 1)),
    ],
)
def test_impossible_requests_are_refused(request_: pb.ReceiptRequest) -> None:
    with pytest.raises(BadPayload):
        receipt_request_of(request_)


def test_impossible_answers_are_refused() -> None:
    for reply in (
        pb.ReceiptReply(signature=b"s"),
        pb.ReceiptReply(opinion=pb.SwapOpinion(gain=99), signature=b"s" * 64),
    ):
        with pytest.raises(BadPayload):
            receipt_of(reply, RoundKey(3, 1))


def test_shown_receipts_are_bounded() -> None:
    good = pb.ShownReceipt(statement=STATEMENT, signature=b"s" * 64)
    assert len(STATEMENT) < MAX_STATEMENT
    assert [one.statement.to_bytes() for one in shown_of(pb.ShownReply(receipts=[good]))] == [STATEMENT]
    for bad in (
        [good] * (MAX_SHOWN + 1),
        [pb.ShownReceipt(statement=STATEMENT, signature=b"s")],
        [pb.ShownReceipt(statement=STATEMENT + b"s" * MAX_STATEMENT, signature=b"s" * 64)],
        [pb.ShownReceipt(statement=STATEMENT[:-1], signature=b"s" * 64)],
    ):
        with pytest.raises(BadPayload):
            shown_of(pb.ShownReply(receipts=bad))
