"""A peer's chain of receipts: one entry a swap, each with the hash of the one before and the signatures of both
partners. Its owner signs every entry, the first record names run and owner. The module is pure, for signatures too.

A chain shows in which order its owner wrote which receipts, and that nobody else changed, moved or removed one of them.
It does not show that its owner wrote all of them down: the newest entries can always be left off."""

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
"""Bytes of a record, at most."""
LENGTH_BYTES = 4
"""Of the length in front of each record."""

Sign = Callable[[bytes], bytes]
Verify = Callable[[PeerId, bytes, bytes], bool]
"""verify(peer, raw, signature)"""
BoundsOf = Callable[[RunId], ReceiptBounds | None]


def no_bounds(run_id: RunId) -> ReceiptBounds | None:
    """Return None, where no run's manifest is at hand."""
    return None


class BrokenChain(Exception):
    """A chain that does not hold. `entry` is the number of the first bad record: 0 is the head, 1 the first entry."""

    def __init__(self, entry: int, why: str) -> None:
        super().__init__(f"{f'entry {entry}' if entry else 'the head'}: {why}")
        self.entry = entry
        self.why = why


@dataclass(frozen=True, slots=True)
class Countersigned:
    """A receipt: our statement, and the opinion of the partner, which signed its own."""

    own_statement: SwapStatement
    partner_opinion: SwapOpinion
    signature: bytes
    """The partner's, 64 bytes."""

    @property
    def statement(self) -> SwapStatement:
        """What the partner signed."""
        return self.own_statement.mirrored(self.partner_opinion)

    def holds(self, verify: Verify) -> bool:
        """Whether the partner signed it."""
        return verify(self.own_statement.partner, self.statement.to_bytes(), self.signature)


@dataclass(slots=True)
class PartnerTotals:
    """Sums over the receipts of one partner. Tokens are not among them: they are claims without a bound."""

    rounds: int = 0
    accepted: int = 0
    """Of its payloads, by the owner."""
    accepted_by_it: int = 0
    """Of the owner's payloads."""
    bytes_received: int = 0
    bytes_sent: int = 0

    def add(self, receipt: Countersigned) -> None:
        """Count one more receipt."""
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
    """Return the record that follows the one with this hash."""
    told = pack_fields(
        previous, receipt.own_statement.to_bytes(), receipt.partner_opinion.to_bytes(), receipt.signature
    )
    return pack_fields(told, sign(ENTRY_PURPOSE + told))


def receipt_in(record: bytes) -> Countersigned:
    """Return what an entry says, unchecked. Raises ValueError."""
    told, _ = unpack_fields(record, 2)
    _, ours, theirs, signature = unpack_fields(told, 4)
    return Countersigned(SwapStatement.from_bytes(ours), SwapOpinion.from_bytes(theirs), signature)


def link_of(record: bytes) -> bytes:
    """Return the hash of the record before, as an entry names it. Raises ValueError."""
    told, _ = unpack_fields(record, 2)
    return unpack_fields(told, 4)[0]


def hash_of(record: bytes) -> bytes:
    """Return what the next record holds of this one."""
    return blake3(record).digest()


def framed(record: bytes) -> bytes:
    """Return a record as it lies in a file: behind its length."""
    return len(record).to_bytes(LENGTH_BYTES, "big") + record


class ChainCheck:
    """Follows a chain, record by record. `verify` decides about signatures. `bounds` returns those of the run that the
    chain names."""

    def __init__(self, verify: Verify, bounds: BoundsOf = no_bounds) -> None:
        self._verify = verify
        self._bounds_of = bounds
        self.bounds: ReceiptBounds | None = None
        """Of the chain's run. None: nobody knows them, and no receipt is refused for what it says."""
        self.run_id = RunId(b"")
        self.owner = PeerId("")
        self.head = b""
        """Hash of the last record; empty before the first."""
        self.entries = 0
        self.first_round = self.last_round = -1
        self.partners: dict[PeerId, PartnerTotals] = {}
        self._seen: set[int] = set()

    def take(self, record: bytes) -> None:
        """Check the next record. Raises BrokenChain; nothing more of the chain counts then."""
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
