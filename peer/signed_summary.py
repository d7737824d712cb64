"""Encodes a peer's summary for the run's nodes as signed bytes, and checks such bytes.

A receipt in it is stored without the fields that follow from the summary: the run, and the peer that sends the
summary."""

from __future__ import annotations

import math

from google.protobuf.message import DecodeError

from peer.errors import ExchangeError
from peer.identity import Identity, peer_id_of, public_key_of, verify
from peer.protocol.messages import DIGEST_BYTES, PeerId, RoundKey, RunId, Status
from peer.protocol.pair.receipt import (
    MAX_FRAGMENT,
    MAX_NBYTES,
    SIGNATURE_BYTES,
    ShownReceipt,
    SwapOpinion,
    SwapStatement,
    Transferred,
)
from peer.protocol.summary.values import MAX_RECEIPTS, MAX_SUMMARY_BYTES, PeerSummary
from peer.v1 import exchange_pb2 as pb

DOMAIN = b"peer summary v1"
KEY_BYTES = 32


class InvalidSummary(ExchangeError):
    """A summary is not signed by its sender's key, or holds impossible values. The message is for people."""


def seal_summary(summary: PeerSummary, identity: Identity) -> bytes:
    """Sign our own summary. Return a serialized `SignedSummary`."""
    assert summary.peer_id == identity.peer_id, "a peer signs for itself alone"
    assert not summary.invalid_reason(), summary.invalid_reason()
    body = pb.SummaryBody(
        run_id=summary.run_id,
        issued_at=summary.issued_at,
        round=summary.round,
        status=summary.status.value,
        tokens=summary.tokens,
        tokens_per_s=summary.tokens_per_s,
        loss=summary.loss,
        loss_round=summary.loss_round,
        due=summary.due,
        exchanged=summary.exchanged,
        solo=summary.solo,
        refused=summary.refused,
        missed=summary.missed,
        bytes_up=summary.bytes_up,
        bytes_down=summary.bytes_down,
        device=summary.device,
        version=summary.version,
        receipts=map(_packed, summary.receipts),
    ).SerializeToString()
    signed = pb.SignedSummary(public_key=identity.public_key, body=body, signature=identity.sign(DOMAIN, body))
    raw: bytes = signed.SerializeToString()
    assert len(raw) <= MAX_SUMMARY_BYTES, len(raw)
    return raw


def unseal_summary(raw: bytes, run_id: RunId) -> PeerSummary:
    """Check size, signature and form of a summary of this run. Raises InvalidSummary.

    The peer id is derived from the key that signed. The caller has to check the signatures of the receipts in it."""
    if len(raw) > MAX_SUMMARY_BYTES:
        raise InvalidSummary(f"a summary of {len(raw)} bytes; at most {MAX_SUMMARY_BYTES} are taken")
    try:
        signed = pb.SignedSummary.FromString(raw)
        body = pb.SummaryBody.FromString(signed.body)
    except DecodeError:
        raise InvalidSummary("not a signed summary") from None
    if len(signed.public_key) != KEY_BYTES or not verify(signed.public_key, DOMAIN, signed.body, signed.signature):
        raise InvalidSummary("a summary that the key it names did not sign")
    if body.run_id != run_id:
        raise InvalidSummary("a summary of another run")
    summary = _summary(body, PeerId(peer_id_of(signed.public_key)), run_id)
    if why := summary.invalid_reason():
        raise InvalidSummary(why)
    return summary


def _summary(body: pb.SummaryBody, peer: PeerId, run_id: RunId) -> PeerSummary:
    """Decode the body of a summary. Raises InvalidSummary."""
    if len(body.receipts) > MAX_RECEIPTS:
        raise InvalidSummary(f"{len(body.receipts)} receipts; at most {MAX_RECEIPTS} are taken")
    return PeerSummary(
        peer_id=peer,
        run_id=run_id,
        issued_at=body.issued_at,
        round=body.round,
        status=_status(body.status),
        tokens=body.tokens,
        tokens_per_s=body.tokens_per_s,
        loss=body.loss if body.HasField("loss") and math.isfinite(body.loss) else None,
        loss_round=body.loss_round,
        due=body.due,
        exchanged=body.exchanged,
        solo=body.solo,
        refused=body.refused,
        missed=body.missed,
        bytes_up=body.bytes_up,
        bytes_down=body.bytes_down,
        device=body.device,
        version=body.version,
        receipts=tuple(_receipt(packed, peer, run_id) for packed in body.receipts),
    )


def _status(word: str) -> Status:
    try:
        return Status(word)
    except ValueError:
        raise InvalidSummary(f"unknown status {word[:32]!r}") from None


def _packed(receipt: ShownReceipt) -> pb.SummaryReceipt:
    said = receipt.statement
    return pb.SummaryReceipt(
        round=said.key.round,
        fragment=said.key.fragment,
        partner=public_key_of(said.signer),
        received_digest=said.received.digest,
        received=said.received.nbytes,
        sent_digest=said.sent.digest,
        sent=said.sent.nbytes,
        opinion=pb.SwapOpinion(tokens=said.opinion.tokens, accepted=said.opinion.accepted, gain=said.opinion.gain),
        signature=receipt.signature,
    )


def _receipt(packed: pb.SummaryReceipt, shows: PeerId, run_id: RunId) -> ShownReceipt:
    """Decode the partner's signed statement about a swap with the peer that shows it. Raises InvalidSummary."""
    opinion = SwapOpinion(packed.opinion.tokens, packed.opinion.accepted, packed.opinion.gain)
    digests = (packed.received_digest, packed.sent_digest)
    if any(len(digest) != DIGEST_BYTES for digest in digests) or len(packed.signature) != SIGNATURE_BYTES:
        raise InvalidSummary("a receipt of an impossible length")
    if len(packed.partner) != KEY_BYTES or not opinion.is_possible():
        raise InvalidSummary("a receipt of an impossible partner or opinion")
    if max(packed.received, packed.sent, packed.round) > MAX_NBYTES or packed.fragment > MAX_FRAGMENT:
        raise InvalidSummary("a receipt with a number beyond all bounds")
    signer = PeerId(peer_id_of(packed.partner))
    if signer == shows:
        raise InvalidSummary("a receipt of a swap of one peer with itself")
    statement = SwapStatement(
        run_id=run_id,
        key=RoundKey(packed.round, packed.fragment),
        signer=signer,
        partner=shows,
        received=Transferred(packed.received_digest, packed.received),
        sent=Transferred(packed.sent_digest, packed.sent),
        opinion=opinion,
    )
    return ShownReceipt(statement, packed.signature)
