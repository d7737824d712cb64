"""Makes chains of receipts with real keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.identity import Identity
from peer.protocol.messages import PeerId, RoundKey, RunId
from peer.protocol.pair.receipt import SwapOpinion, SwapStatement, Transferred
from peer.protocol.pair.receipt_chain import Countersigned, entry_record, framed, hash_of, head_record
from peer.transport.signing import KeySigner

RUN = RunId(b"R" * 32)


@dataclass
class Signing:
    """A peer with a key that signs receipts."""

    identity: Identity = field(default_factory=Identity.generate)

    @property
    def id(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    @property
    def signer(self) -> KeySigner:
        return KeySigner(self.identity)

    def said(self, partner: PeerId, round_: int, opinion: SwapOpinion, run: RunId = RUN) -> SwapStatement:
        """Return this peer's signed statement about a swap."""
        received, sent = Transferred(bytes([round_] * 32), 1000 + round_), Transferred(b"s" * 32, 2000)
        return SwapStatement(run, RoundKey(round_, 0), self.id, partner, received, sent, opinion)


def countersigned(
    owner: Signing, partner: Signing, round_: int, ours: SwapOpinion, theirs: SwapOpinion
) -> Countersigned:
    """Return a receipt that both peers have signed."""
    statement = owner.said(partner.id, round_, ours)
    return Countersigned(statement, theirs, partner.signer.sign(statement.mirrored(theirs).to_bytes()))


def chained(owner: Signing, receipts: list[Countersigned], run: RunId = RUN) -> list[bytes]:
    """Return the records of a receipt chain."""
    records = [head_record(run, owner.id, owner.signer.sign)]
    for receipt in receipts:
        records.append(entry_record(hash_of(records[-1]), receipt, owner.signer.sign))
    return records


def file_of(records: list[bytes]) -> bytes:
    return b"".join(map(framed, records))
