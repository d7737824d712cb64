from __future__ import annotations

import math
from dataclasses import replace

import pytest

from peer.identity import Identity
from peer.protocol.messages import RunId
from peer.protocol.summary.values import MAX_RECEIPTS, MAX_SUMMARY_BYTES
from peer.signed_summary import DOMAIN, InvalidSummary, seal_summary, unseal_summary
from peer.v1 import exchange_pb2 as pb
from tests.support.signed_receipts import RUN, Signing
from tests.support.summaries import shown, summary_of

ME, PARTNER = Signing(), Signing()


def signed(body: pb.SummaryBody, by: Identity = ME.identity) -> bytes:
    raw = body.SerializeToString()
    summary = pb.SignedSummary(public_key=by.public_key, body=raw, signature=by.sign(DOMAIN, raw))
    return bytes(summary.SerializeToString())


def body_of(raw: bytes) -> pb.SummaryBody:
    return pb.SummaryBody.FromString(pb.SignedSummary.FromString(raw).body)


def test_what_was_sealed_comes_back() -> None:
    receipts = tuple(shown(PARTNER, ME, round_) for round_ in range(MAX_RECEIPTS))
    summary = summary_of(ME.id, receipts=receipts)
    raw = seal_summary(summary, ME.identity)
    assert len(raw) <= MAX_SUMMARY_BYTES
    assert unseal_summary(raw, RUN) == summary
    assert unseal_summary(seal_summary(replace(summary, loss=None), ME.identity), RUN).loss is None


def test_no_changed_byte_passes() -> None:
    raw = seal_summary(summary_of(ME.id), ME.identity)
    for at in range(len(raw)):
        with pytest.raises(InvalidSummary):
            unseal_summary(bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]]), RUN)


@pytest.mark.parametrize(
    "change",
    [
        {"issued_at": math.nan},
        {"tokens_per_s": math.inf},
        {"tokens_per_s": -1.0},
        {"round": 2**60},
        {"tokens": 2**63},
        {"status": "asleep"},
        {"device": "x" * 33},
        {"version": "\x1b[2J"},
        {"run_id": b"short"},
    ],
)
def test_a_signed_body_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    body = body_of(seal_summary(summary_of(ME.id), ME.identity))
    for name, value in change.items():
        setattr(body, name, value)
    with pytest.raises(InvalidSummary):
        unseal_summary(signed(body), RUN)


def test_a_loss_that_is_not_finite_counts_as_none() -> None:
    body = body_of(seal_summary(summary_of(ME.id), ME.identity))
    body.loss = math.nan
    assert unseal_summary(signed(body), RUN).loss is None


def test_too_many_receipts_and_too_many_bytes_are_refused() -> None:
    body = body_of(seal_summary(summary_of(ME.id, receipts=(shown(PARTNER, ME, 1),)), ME.identity))
    body.receipts.extend([body.receipts[0]] * MAX_RECEIPTS)
    with pytest.raises(InvalidSummary, match="9 receipts"):
        unseal_summary(signed(body), RUN)
    with pytest.raises(InvalidSummary, match="at most 4096"):
        unseal_summary(bytes(MAX_SUMMARY_BYTES + 1), RUN)


def test_a_receipt_of_oneself_is_refused() -> None:
    body = body_of(seal_summary(summary_of(ME.id, receipts=(shown(PARTNER, ME, 1),)), ME.identity))
    body.receipts[0].partner = ME.identity.public_key
    with pytest.raises(InvalidSummary, match="itself"):
        unseal_summary(signed(body), RUN)


def test_a_summary_of_another_run_is_refused() -> None:
    with pytest.raises(InvalidSummary, match="another run"):
        unseal_summary(seal_summary(summary_of(ME.id), ME.identity), RunId(b"x" * 32))
