"""The proof that an owner signed a result that is not the mean of the parts that it showed. It can be passed on, and
anybody with the run's manifest can verify it offline.

A proof cannot accuse an honest owner: the owner has signed both the result and the parts that it shows, and each part
has its sender's signature. If a signature is missing or invalid, nothing is proved."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from peer.codes import Code
from peer.errors import BadPayload
from peer.exchange.group.contribution import statement_of
from peer.exchange.group.evidence import SIGNATURE_BYTES, EvidenceForm, evidence_statement
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.reduce import reduce_contributions
from peer.exchange.group.sparse_result import SparseResult
from peer.protocol.group.receipts import digest_of, statement
from peer.protocol.group.roster import MAX_ROSTER_BYTES, Roster, parse_roster
from peer.protocol.group.shards import Shard, check_named
from peer.protocol.messages import PeerId, RunId

Verify = Callable[[PeerId, bytes, bytes], bool]
"""Returns whether a peer signed some bytes: (peer, raw, signature)."""
MARK = b"peer shard proof v1\0"
HEAD = struct.Struct("<IHH32s64s")
"""Length of the roster in bytes, shard, number of parts, digest of the result, the owner's signature."""


@dataclass(frozen=True, slots=True)
class ShardProof:
    """A signed result, and the evidence that its owner showed for it."""

    roster: Roster
    shard: int
    named: tuple[int, ...]
    """The contributors that the result names, as indices into the roster's members."""
    digest: bytes
    """Digest of the result (`peer.protocol.group.receipts`)."""
    signature: bytes
    """The owner's signature of the result."""
    shown: memoryview
    """The owner's evidence (`peer.exchange.group.evidence`)."""

    def to_bytes(self) -> bytes:
        """Encode the proof for passing it on."""
        roster = self.roster.to_bytes()
        head = HEAD.pack(len(roster), self.shard, len(self.named), self.digest, self.signature)
        named = struct.pack(f"<{len(self.named)}H", *self.named)
        return b"".join((MARK, head, named, roster, self.shown))


@dataclass(frozen=True, slots=True)
class Finding:
    """What the examination of a proof has shown."""

    owner: PeerId | None
    """The owner of the shard; None: the proof does not identify it."""
    guilty: bool
    why: str
    """The reason, as a sentence for a person."""


def parse_proof(raw: bytes) -> ShardProof:
    """Decode a proof and check its form, not its signatures. Raises BadPayload."""
    try:
        if not raw.startswith(MARK):
            raise ValueError("mark")
        size, shard, count, digest, signature = HEAD.unpack_from(raw, len(MARK))
        at = len(MARK) + HEAD.size
        named = struct.unpack_from(f"<{count}H", raw, at)
        at += 2 * count
        if not 0 < size <= MAX_ROSTER_BYTES or at + size > len(raw):
            raise ValueError("roster")
        roster = parse_roster(raw[at : at + size])
        return ShardProof(
            roster,
            shard,
            check_named(named, len(roster.members)),
            digest,
            signature,
            memoryview(raw)[at + size :].toreadonly(),
        )
    except (ValueError, struct.error) as error:
        raise BadPayload(Code.PROOF, f"the proof cannot be read ({error})") from None


def examine(proof: ShardProof, run_id: RunId, terms: MeanTerms, elements: Sequence[int], verify: Verify) -> Finding:
    """Recompute the mean from the parts shown, and compare it with the signed result. Runs in a worker thread.
    `elements`: of each fragment of the run."""
    roster = proof.roster
    if roster.run_id != run_id or roster.key.fragment >= len(elements):
        return Finding(None, False, "it is of another run")
    shards = terms.cut(roster, elements[roster.key.fragment])
    if proof.shard >= len(shards) or isinstance(terms.result_codec, SparseResult):
        return Finding(None, False, "there is no such shard, or its result relays its parts")
    shard = shards[proof.shard]
    if why := _unproved(proof, shard, terms, verify):
        return Finding(shard.owner, False, why)
    if _made_again(proof, shard, terms) == proof.digest:
        return Finding(shard.owner, False, "the result is the mean of the parts")
    reason = f"signed a result of shard {shard.index} in round {roster.key.round} that is not the mean of its parts"
    return Finding(shard.owner, True, reason)


def _unproved(proof: ShardProof, shard: Shard, terms: MeanTerms, verify: Verify) -> str:
    """Return why the proof is incomplete, whatever the mean is; empty: everything needed is present and signed."""
    name, form = proof.roster.name(), EvidenceForm(terms, shard.elements, len(proof.named))
    if not verify(shard.owner, statement(name, shard.index, proof.digest), proof.signature):
        return "the owner did not sign the result"
    if len(proof.shown) != form.nbytes or not proof.named:
        return f"{len(proof.shown)} bytes are shown, {form.nbytes} are due"
    if digest_of(form.result(proof.shown), proof.named) != proof.digest:
        return "the owner shows another result"
    said = evidence_statement(proof.shown, name, shard.index, proof.digest)
    if not verify(shard.owner, said, bytes(proof.shown[:SIGNATURE_BYTES])):
        return "the owner did not sign what is shown"
    try:
        parts = form.contributions(proof.shown)
    except BadPayload as error:
        return f"the parts shown cannot be: {error.reason}"
    for index, part in zip(proof.named, parts, strict=True):
        sender, said = proof.roster.members[index], statement_of(part, name, shard.index, terms.codec, shard.elements)
        if not verify(sender, said, part.signature):
            return f"{sender} did not sign its part"
    return ""


def _made_again(proof: ShardProof, shard: Shard, terms: MeanTerms) -> bytes:
    """Return the digest of the recomputed mean; empty: an honest owner would not have averaged these parts."""
    form = EvidenceForm(terms, shard.elements, len(proof.named))
    peers = [proof.roster.members[index] for index in proof.named]
    parts = dict(zip(peers, form.contributions(proof.shown), strict=True))
    made = reduce_contributions(
        parts,
        terms,
        torch.empty(shard.elements),
        lambda named: "",
        lambda peer, part: True,
        terms.tensors_of(proof.roster.key.fragment, shard),
    )
    if made.payload is None or list(made.named) != peers:
        return b""
    return digest_of(made.payload, proof.named)
