"""A peer's hash chain of receipts: one entry per swap, with the hash of the previous entry and the signatures of both
partners. The first record, the head, names run and owner, and the owner signs every record. The module is pure; the
caller passes functions that sign and verify.

A chain proves the order in which its owner recorded the receipts, and that nobody changed, moved or removed one in the
middle. It does not prove that it is complete: the owner can always omit the newest entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from peer.protocol.messages import DIGEST_BYTES, PeerId, RunId
from peer.protocol.pair.receipt import ReceiptBounds, SwapOpinion, SwapStatement, peer_id_of_field
from peer.protocol.wire.fields import pack_fields, unpack_fields

HEAD_PURPOSE = b"pair receipts, chain v1\0"
ENTRY_PURPOSE = b"pair receipts, entry v1\0"
MAX_RECORD = 1024
"""Maximum bytes of a record."""
LENGTH_BYTES = 4
"""Bytes of the length prefix of each record in a file."""

Sign = Callable[[bytes], bytes]
"""Sign these bytes."""
Verify = Callable[[PeerId, bytes, bytes], bool]
"""verify(peer, raw, signature): return whether the signature is valid."""
BoundsOf = Callable[[RunId], ReceiptBounds | None]
"""Return the receipt bounds of a run. None: they are not known."""


def no_bounds(run_id: RunId) -> ReceiptBounds | None:
    """Return None: no manifest is known."""
    return None


class BrokenChain(Exception):
    """Raised for an invalid chain. `entry`: number of the first invalid record; 0 is the head, 1 the first entry."""

    def __init__(self, entry: int, why: str) -> None:
        super().__init__(f"{f'entry {entry}' if entry else 'the head'}: {why}")
        self.entry = entry
        self.why = why


@dataclass(frozen=True, slots=True)
class Countersigned:
    """A receipt: our own statement, and the partner's opinion with its signature."""

    own_statement: SwapStatement
    partner_opinion: SwapOpinion
    signature: bytes
    """Signature of the partner, 64 bytes."""

    @property
    def statement(self) -> SwapStatement:
        """The statement to which the partner's signature belongs."""
        return self.own_statement.mirrored(self.partner_opinion)

    def holds(self, verify: Verify) -> bool:
        """Return whether the partner's signature is valid."""
        return verify(self.own_statement.partner, self.statement.to_bytes(), self.signature)


@dataclass(slots=True)
class PartnerTotals:
    """Sums over the receipts of one partner. Tokens are not summed: they are claims without a bound."""

    rounds: int = 0
    accepted: int = 0
    """Payloads of the partner that the owner accepted."""
    accepted_by_it: int = 0
    """Payloads of the owner that the partner accepted."""
    bytes_received: int = 0
    bytes_sent: int = 0

    def add(self, receipt: Countersigned) -> None:
        """Add a receipt to the sums."""
        ours, theirs = receipt.own_statement, receipt.partner_opinion
        self.rounds += 1
        self.accepted += ours.opinion.accepted
        self.accepted_by_it += theirs.accepted
        self.bytes_received += ours.received.nbytes
        self.bytes_sent += ours.sent.nbytes


def head_record(run_id: RunId, owner: PeerId, sign: Sign) -> bytes:
    """Return the first record of a chain."""
    told = pack_fields(run_id, owner.encode())
    return pack_fields(told, sign(HEAD_PURPOSE + told))


def entry_record(previous: bytes, receipt: Countersigned, sign: Sign) -> bytes:
    """Return the record that follows a record with the hash `previous`."""
    told = pack_fields(
        previous, receipt.own_statement.to_bytes(), receipt.partner_opinion.to_bytes(), receipt.signature
    )
    return pack_fields(told, sign(ENTRY_PURPOSE + told))


def receipt_in(record: bytes) -> Countersigned:
    """Return the receipt in an entry, not verified. Raises ValueError."""
    told, _ = unpack_fields(record, 2)
    _, ours, theirs, signature = unpack_fields(told, 4)
    return Countersigned(SwapStatement.from_bytes(ours), SwapOpinion.from_bytes(theirs), signature)


def link_of(record: bytes) -> bytes:
    """Return the hash of the previous record that an entry contains. Raises ValueError."""
    told, _ = unpack_fields(record, 2)
    return unpack_fields(told, 4)[0]


def hash_of(record: bytes) -> bytes:
    """Return the hash of this record, which the next one contains."""
    return blake3(record).digest()


def framed(record: bytes) -> bytes:
    """Return a record with its length prefix, as it is stored in a file."""
    return len(record).to_bytes(LENGTH_BYTES, "big") + record


class ChainCheck:
    """Verifies a chain record by record. `bounds` is called with the run that the head names."""

    def __init__(self, verify: Verify, bounds: BoundsOf = no_bounds) -> None:
        self._verify = verify
        self._bounds_of = bounds
        self.bounds: ReceiptBounds | None = None
        """Bounds of the chain's run. None: not known; receipts are then not checked against bounds."""
        self.run_id = RunId(b"")
        self.owner = PeerId("")
        self.head = b""
        """Hash of the last record; empty before the first."""
        self.entries = 0
        self.first_round = self.last_round = -1
        self.partners: dict[PeerId, PartnerTotals] = {}
        self._seen: set[int] = set()

    def take(self, record: bytes) -> None:
        """Verify the next record. Raises BrokenChain; the rest of the chain is then not valid."""
        number = self.entries + bool(self.head)
        try:
            if self.head:
                self._entry(record)
            else:
                self._begin(record)
        except ValueError as error:
            raise BrokenChain(number, str(error)) from None
        self.head = hash_of(record)
        self.entries = number

    def _begin(self, record: bytes) -> None:
        told, signature = unpack_fields(record, 2)
        run_id, owner = unpack_fields(told, 2)
        if len(run_id) != DIGEST_BYTES:
            raise ValueError("it names no run")
        self.run_id, self.owner = RunId(run_id), peer_id_of_field(owner)
        if not self._verify(self.owner, HEAD_PURPOSE + told, signature):
            raise ValueError("the signature of the owner does not hold")
        self.bounds = self._bounds_of(self.run_id)

    def _entry(self, record: bytes) -> None:
        told, signature = unpack_fields(record, 2)
        if link_of(record) != self.head:
            raise ValueError("it does not follow the record before it")
        receipt = receipt_in(record)
        statement = receipt.own_statement
        if (statement.run_id, statement.signer) != (self.run_id, self.owner):
            raise ValueError("it is of another run or another owner")
        round_ = statement.key.round
        if round_ in self._seen:
            raise ValueError(f"a second receipt for round {round_}")
        if self.bounds is not None and (why := self.bounds.refusal_reason(statement)):
            raise ValueError(why)
        if not self._verify(self.owner, ENTRY_PURPOSE + told, signature):
            raise ValueError("the signature of the owner does not hold")
        if not receipt.holds(self._verify):
            raise ValueError(f"the signature of the partner {statement.partner} does not hold")
        self._seen.add(round_)
        self.first_round = round_ if self.first_round < 0 else min(self.first_round, round_)
        self.last_round = max(self.last_round, round_)
        self.partners.setdefault(statement.partner, PartnerTotals()).add(receipt)
