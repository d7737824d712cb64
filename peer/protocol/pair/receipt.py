"""The receipt of a swap: a statement that each of the two partners signs. Both statements describe the same transfer
from the signer's side, and each contains the signer's opinion. The module is pure: the caller signs and verifies.

The partner's statement follows from our own statement and the partner's opinion (`SwapStatement.mirrored`). So only the
opinion and the signature have to be sent and stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from peer.protocol.messages import DIGEST_BYTES, MAX_ROUND, PeerId, RoundKey, RunId
from peer.protocol.wire.fields import fixed, number_of, pack_fields, unpack_fields

PURPOSE = b"pair receipt v1\0"
"""Prefix of the signed bytes, so that the signature is not valid for another kind of document."""
MAX_TOKENS = 2**53
MAX_FRAGMENT = 2**32 - 1
MAX_NBYTES = 2**53
MAX_PEER_ID = 64
MAX_STATEMENT = 512
"""Maximum bytes of an encoded statement."""
SIGNATURE_BYTES = 64
MAX_SHOWN = 16
"""Maximum receipts in one answer."""
NOT_MEASURED = 0
"""Value of `SwapOpinion.gain` if no gain was measured."""
MAX_GAIN = 15
LEAST_GAIN = 1e-4
"""Upper end of the smallest bucket of gains, in nats per token."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """The payload that was transferred in one direction."""

    digest: bytes
    """BLAKE3 of its bytes as transferred; see `digest_of_parts`."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class SwapOpinion:
    """One partner's claims about a swap."""

    tokens: int
    """Tokens of work behind the payload that it sent. Nobody else can verify this."""
    accepted: bool
    """Whether the payload that it received was used in its outer step."""
    gain: int = NOT_MEASURED
    """`gain_bucket` of the payload that it received."""

    def to_bytes(self) -> bytes:
        return pack_fields(fixed(self.tokens, 8), fixed(self.accepted, 1), fixed(self.gain, 1))

    @classmethod
    def from_bytes(cls, raw: bytes) -> SwapOpinion:
        """Decode an opinion. Raises ValueError for anything that `to_bytes` would not return."""
        tokens, accepted, gain = unpack_fields(raw, 3)
        opinion = cls(number_of(tokens, 8), number_of(accepted, 1) == 1, number_of(gain, 1))
        if not opinion.is_possible() or opinion.to_bytes() != raw:
            raise ValueError("an impossible opinion")
        return opinion

    def is_possible(self) -> bool:
        """Return whether the numbers are within their bounds."""
        return 0 <= self.tokens <= MAX_TOKENS and 0 <= self.gain <= MAX_GAIN


@dataclass(frozen=True, slots=True)
class SwapStatement:
    """The statement about a swap that one partner signs."""

    run_id: RunId
    key: RoundKey
    signer: PeerId
    partner: PeerId
    received: Transferred
    """Payload that the signer received from the partner."""
    sent: Transferred
    """Payload that the signer sent."""
    opinion: SwapOpinion
    """Opinion of the signer."""

    def to_bytes(self) -> bytes:
        """Return the bytes that are signed."""
        return PURPOSE + pack_fields(
            self.run_id,
            fixed(self.key.round, 8),
            fixed(self.key.fragment, 4),
            self.signer.encode(),
            self.partner.encode(),
            self.received.digest,
            fixed(self.received.nbytes, 8),
            self.sent.digest,
            fixed(self.sent.nbytes, 8),
            self.opinion.to_bytes(),
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> SwapStatement:
        """Decode a statement. Raises ValueError for anything that `to_bytes` would not return."""
        if not raw.startswith(PURPOSE):
            raise ValueError("no statement about a swap")
        run_id, round_, fragment, signer, partner, *transfers, opinion = unpack_fields(raw[len(PURPOSE) :], 10)
        received, received_nbytes, sent, sent_nbytes = transfers
        statement = cls(
            RunId(run_id),
            RoundKey(number_of(round_, 8), number_of(fragment, 4)),
            peer_id_of_field(signer),
            peer_id_of_field(partner),
            Transferred(received, number_of(received_nbytes, 8)),
            Transferred(sent, number_of(sent_nbytes, 8)),
            SwapOpinion.from_bytes(opinion),
        )
        statement._check()
        return statement

    def mirrored(self, opinion: SwapOpinion) -> SwapStatement:
        """Return the partner's statement about the same swap, given the partner's opinion."""
        return SwapStatement(self.run_id, self.key, self.partner, self.signer, self.sent, self.received, opinion)

    def _check(self) -> None:
        digests = (self.run_id, self.received.digest, self.sent.digest)
        if any(len(digest) != DIGEST_BYTES for digest in digests):
            raise ValueError("a digest of another length")
        if self.signer == self.partner:
            raise ValueError("a swap of one peer with itself")
        if self.key.round > MAX_ROUND or max(self.received.nbytes, self.sent.nbytes) > MAX_NBYTES:
            raise ValueError("a number beyond all bounds")


@dataclass(frozen=True, slots=True)
class ReceiptBounds:
    """Bounds for the receipts of one run. One person with two keys can sign any receipt, so every reader refuses
    receipts that the run's manifest and the clock do not allow."""

    fragments: int
    """Number of fragments of the run, which are due in turn."""
    payload_bytes: int
    """Maximum bytes of one swap in each direction."""
    rounds: int
    """Number of rounds that can have been due, from round 0."""

    def refusal_reason(self, said: SwapStatement) -> str:
        """Return why this cannot be a swap of the run, for people to read. Empty: it can."""
        round_, fragment = said.key.round, said.key.fragment
        if round_ >= self.rounds:
            return f"a receipt of round {round_}, and {self.rounds} rounds can have been due"
        if fragment != round_ % self.fragments:
            return (
                f"a receipt of round {round_} for fragment {fragment}, and fragment {round_ % self.fragments} was due"
            )
        if (most := max(said.received.nbytes, said.sent.nbytes)) > self.payload_bytes:
            return f"a receipt for {most} bytes, and a swap of this run has {self.payload_bytes} at most"
        return ""


@dataclass(frozen=True, slots=True)
class SignedOpinion:
    """The message that one partner sends the other about their swap."""

    key: RoundKey
    opinion: SwapOpinion
    signature: bytes
    """Signature of the sender over its statement."""


@dataclass(frozen=True, slots=True)
class ShownReceipt:
    """A signed statement that a peer passes on to others."""

    statement: SwapStatement
    signature: bytes


def peer_id_of_field(field: bytes) -> PeerId:
    """Decode a peer id. Raises ValueError."""
    if not 0 < len(field) <= MAX_PEER_ID or not field.isascii():
        raise ValueError("a peer id that cannot be one")
    return PeerId(field.decode("ascii"))


def digest_of_parts(digests: Sequence[bytes]) -> bytes:
    """Return the digest of a payload that was transferred in several parts: that of a single part, or BLAKE3 over all
    digests."""
    return digests[0] if len(digests) == 1 else blake3(b"".join(digests)).digest()


def gain_bucket(nats: float) -> int:
    """Return the bucket of a measured gain in nats per token: 1 for none or a loss, and one more for each doubling.
    NaN: `NOT_MEASURED`."""
    if math.isnan(nats):
        return NOT_MEASURED
    if nats <= 0:
        return 1
    return min(MAX_GAIN, 2 + max(0, math.ceil(math.log2(min(nats, 1e6) / LEAST_GAIN))))
