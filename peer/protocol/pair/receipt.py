"""The receipt of a swap: the sentence that each of the two partners signs about it. Both name the same transfer, seen
from their own side, and each adds its own opinion. The module is pure: the caller signs and verifies.

One partner's statement follows from the other's statement and its own opinion (`SwapStatement.mirrored`). So an opinion
and a signature are all that has to travel, and all that has to be kept of the other side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from peer.protocol.messages import DIGEST_BYTES, MAX_ROUND, PeerId, RoundKey, RunId
from peer.protocol.wire.fields import fixed, number_of, pack_fields, unpack_fields

PURPOSE = b"pair receipt v1\0"
"""Begins what is signed, so that it cannot be taken for anything else that a key signs."""
MAX_TOKENS = 2**53
MAX_FRAGMENT = 2**32 - 1
MAX_NBYTES = 2**53
MAX_PEER_ID = 64
MAX_STATEMENT = 512
"""Bytes of an encoded statement, at most."""
SIGNATURE_BYTES = 64
MAX_SHOWN = 16
"""Receipts that are shown at once."""
NOT_MEASURED = 0
MAX_GAIN = 15
LEAST_GAIN = 1e-4
"""Nats a token: the upper end of the smallest gain that is told from none."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """The payload that went one way."""

    digest: bytes
    """BLAKE3 of its bytes as they travelled; see `digest_of_parts`."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class SwapOpinion:
    """What one partner says of a swap."""

    tokens: int
    """Tokens of work behind the payload that it sent. A claim: nobody can count them from outside."""
    accepted: bool
    """Whether the payload that it received entered its outer step."""
    gain: int = NOT_MEASURED
    """`gain_bucket` of what it received."""

    def to_bytes(self) -> bytes:
        return pack_fields(fixed(self.tokens, 8), fixed(self.accepted, 1), fixed(self.gain, 1))

    @classmethod
    def from_bytes(cls, raw: bytes) -> SwapOpinion:
        """Raises ValueError for anything that `to_bytes` would not write."""
        tokens, accepted, gain = unpack_fields(raw, 3)
        opinion = cls(number_of(tokens, 8), number_of(accepted, 1) == 1, number_of(gain, 1))
        if not opinion.is_possible() or opinion.to_bytes() != raw:
            raise ValueError("an impossible opinion")
        return opinion

    def is_possible(self) -> bool:
        """Whether the numbers are within their bounds."""
        return 0 <= self.tokens <= MAX_TOKENS and 0 <= self.gain <= MAX_GAIN


@dataclass(frozen=True, slots=True)
class SwapStatement:
    """What one partner signs about a swap."""

    run_id: RunId
    key: RoundKey
    signer: PeerId
    partner: PeerId
    received: Transferred
    """By the signer, from the partner."""
    sent: Transferred
    opinion: SwapOpinion
    """The signer's."""

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
        """Raises ValueError for anything that `to_bytes` would not write."""
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
        """Return what the partner signs about the same swap when this is its opinion."""
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
    """What a receipt of one run can say. Two keys of one person sign anything for each other, so a receipt beyond what
    the run's manifest and the clock allow is refused wherever it is read."""

    fragments: int
    """The rounds take turns with the run's fragments."""
    payload_bytes: int
    """Of one swap, each way."""
    rounds: int
    """Rounds that can have been due. Their numbers begin with 0."""

    def refusal_reason(self, said: SwapStatement) -> str:
        """Return why no swap of the run can be this one, for a person. Empty: one can."""
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
    """What one partner sends the other about their swap."""

    key: RoundKey
    opinion: SwapOpinion
    signature: bytes
    """The sender's, over its statement."""


@dataclass(frozen=True, slots=True)
class ShownReceipt:
    """A statement that a peer shows of another one, which signed it."""

    statement: SwapStatement
    signature: bytes


def peer_id_of_field(field: bytes) -> PeerId:
    """Decode a peer id. Raises ValueError."""
    if not 0 < len(field) <= MAX_PEER_ID or not field.isascii():
        raise ValueError("a peer id that cannot be one")
    return PeerId(field.decode("ascii"))


def digest_of_parts(digests: Sequence[bytes]) -> bytes:
    """Return the digest of a payload that travelled in several parts: of one part its own, of more BLAKE3 of theirs."""
    return digests[0] if len(digests) == 1 else blake3(b"".join(digests)).digest()


def gain_bucket(nats: float) -> int:
    """Return the bucket of a measured gain in nats a token: 1 for none or a loss, and one more for each doubling."""
    if math.isnan(nats):
        return NOT_MEASURED
    if nats <= 0:
        return 1
    return min(MAX_GAIN, 2 + max(0, math.ceil(math.log2(min(nats, 1e6) / LEAST_GAIN))))
