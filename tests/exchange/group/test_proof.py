"""The proof of a false result. A difference in the last bit is enough to convict the owner, and no owner is convicted
for the fault of another peer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from peer.codec.registry import EVERY
from peer.errors import BadPayload
from peer.exchange.group.contribution import Contribution, statement_of
from peer.exchange.group.evidence import ShownEvidence, name_of
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.proof import Finding, ShardProof, examine, parse_proof
from peer.exchange.group.reduce import reduce_contributions
from peer.protocol.group.quorum import Base
from peer.protocol.group.receipts import digest_of, shown_statement, statement
from peer.protocol.group.roster import Roster
from peer.protocol.messages import PIECE_BYTES, PeerId, RoundKey, RunId
from peer.protocol.wire.payload import BytesSource
from peer.transport.signing import KeySigner
from tests.simulation.test_groups import identities

RUN, ELEMENTS, FRAGMENT = RunId(b"R" * 32), 3000, 1
SIGNERS = {PeerId(one.peer_id): KeySigner(one) for one in identities(5)}
MEMBERS = tuple(sorted(SIGNERS))
ROSTER = Roster(RUN, RoundKey(9, FRAGMENT), MEMBERS[0], Base(b"d" * 32), MEMBERS, MEMBERS)
CODECS = [("fp32", "fp32"), ("int4", "fp16"), ("e3m0", "int8")]


def terms_of(codec: str = "fp32", result: str = "fp32") -> MeanTerms:
    return MeanTerms(codec=EVERY[codec], result_codec=EVERY[result])


def verify(peer: PeerId, raw: bytes, signature: bytes) -> bool:
    return next(iter(SIGNERS.values())).verify(peer, raw, signature)


def last_place(result: memoryview) -> bytes:
    """Return the mean with the last bit flipped of the first byte that holds the codec's values."""
    changed = bytearray(result)
    changed[0] ^= 1
    return bytes(changed)


def proof_of(terms: MeanTerms, *, lie: bool = False, unsigned: bool = False, long: float = 1.0) -> ShardProof:
    """Return the proof of an owner's result. `unsigned`: one part has no signature. `long`: factor on the length of one
    part."""
    shard, name = terms.cut(ROSTER, ELEMENTS)[2], ROSTER.name()
    parts = {}
    for number, peer in enumerate(MEMBERS):
        values = torch.randn(shard.elements, generator=torch.Generator().manual_seed(number)) * 0.01
        payload = terms.codec.encode(values * (long if number == 1 else 1.0))
        part = Contribution(100 + 37 * number, BytesSource(payload))
        said = statement_of(part, name, shard.index, terms.codec, shard.elements)
        signature = b"" if unsigned and number == 3 else SIGNERS[peer].sign(said)
        parts[peer] = replace(part, signature=signature)
    kept: list[ShownEvidence] = []
    made = reduce_contributions(
        parts,
        terms,
        torch.empty(shard.elements),
        lambda named: "",
        lambda peer, part: True,
        keep=lambda parts: kept.append(ShownEvidence(terms, shard.elements, parts, None)),
    )
    assert made.payload is not None
    result = last_place(made.payload) if lie else bytes(made.payload)
    named = tuple(range(len(MEMBERS)))
    return signed(terms, kept[0], result, named, shard.index)


def signed(terms: MeanTerms, shown: ShownEvidence, result: bytes, named: tuple[int, ...], index: int) -> ShardProof:
    shard, name, digest = terms.cut(ROSTER, ELEMENTS)[index], ROSTER.name(), digest_of(result, named)
    seal = SIGNERS[shard.owner]
    shown.open(name_of(name, index), seal.sign(shown_statement(name, index, digest, shown.digest(result))), 2)
    piece = shown.on_piece(name_of(name, index), 0)
    assert piece is not None
    assert len(piece) < PIECE_BYTES
    return ShardProof(ROSTER, index, named, digest, seal.sign(statement(name, index, digest)), piece)


def judged(proof: ShardProof, terms: MeanTerms) -> Finding:
    return examine(proof, RUN, terms, (10, ELEMENTS), verify)


@pytest.mark.parametrize("codecs", CODECS, ids=str)
def test_one_unit_in_the_last_place_convicts(codecs: tuple[str, str]) -> None:
    terms = terms_of(*codecs)
    handed_on = parse_proof(proof_of(terms, lie=True).to_bytes())
    found = judged(handed_on, terms)
    assert found.guilty
    assert found.owner == terms.cut(ROSTER, ELEMENTS)[2].owner
    assert "not the mean" in found.why


@pytest.mark.parametrize("long", [1.0, 5.0, 90.0])
@pytest.mark.parametrize("codecs", CODECS, ids=str)
def test_an_honest_mean_is_made_again_to_the_bit(codecs: tuple[str, str], long: float) -> None:
    """One of the contributions is longer than allowed, so that scaling it down is covered too."""
    terms = terms_of(*codecs)
    found = judged(parse_proof(proof_of(terms, long=long).to_bytes()), terms)
    assert (found.guilty, found.why) == (False, "the result is the mean of the parts")


def test_an_unsigned_part_proves_nothing() -> None:
    terms = terms_of()
    found = judged(proof_of(terms, lie=True, unsigned=True), terms)
    assert not found.guilty
    assert "did not sign its part" in found.why


def test_an_owner_is_not_blamed_for_parts_that_it_did_not_average() -> None:
    """A dishonest member signs two contributions, and accuses the owner with the one that the owner never received."""
    terms = terms_of()
    honest, other = proof_of(terms), proof_of(terms, long=1.1)
    assert judged(other, terms).why == "the result is the mean of the parts"
    framed = replace(honest, shown=memoryview(bytes(honest.shown[:64]) + bytes(other.shown[64:])))
    found = judged(framed, terms)
    assert not found.guilty
    assert found.why == "the owner shows another result"
    start = len(honest.shown) - 3 * terms.codec.nbytes(terms.cut(ROSTER, ELEMENTS)[2].elements)
    framed = replace(honest, shown=memoryview(bytes(honest.shown[:start]) + bytes(other.shown[start:])))
    assert not judged(framed, terms).guilty


def test_an_owner_is_not_blamed_for_names_that_it_did_not_give() -> None:
    terms = terms_of()
    proof = proof_of(terms)
    for named in ((0, 1, 2, 3), (), (0, 1, 2, 4, 4)):
        assert not judged(replace(proof, named=named), terms).guilty


def test_no_change_of_a_byte_turns_an_honest_result_into_a_proof() -> None:
    terms, draw = terms_of("int4", "fp16"), random.Random(4)
    raw, unreadable = proof_of(terms).to_bytes(), 0
    for place in [*range(200), *(draw.randrange(len(raw)) for _ in range(200))]:
        changed = bytearray(raw)
        changed[place] ^= 1 << draw.randrange(8)
        try:
            assert not judged(parse_proof(bytes(changed)), terms).guilty, place
        except BadPayload:
            unreadable += 1
    assert unreadable > 0
    for size in (0, 10, 150, len(raw) - 1):
        with pytest.raises(BadPayload):
            raise BadPayload("proof", judged(parse_proof(raw[:size]), terms).why)


def test_a_proof_of_another_run_is_none() -> None:
    terms = terms_of()
    assert examine(proof_of(terms, lie=True), RunId(b"S" * 32), terms, (10, ELEMENTS), verify).owner is None


def test_evidence_is_shown_to_each_member_once() -> None:
    terms = terms_of()
    parts = [Contribution(1, BytesSource(terms.codec.encode(Tensor([1.0, 2.0]))), b"s" * 64)]
    shown = ShownEvidence(terms, 2, parts, None)
    assert shown.on_piece("", 0) is None, "not yet signed"
    shown.digest(terms.codec.encode(Tensor([1.0, 2.0])))
    shown.open("mine", b"t" * 64, 2)
    assert shown.on_piece("other", 0) is None
    assert shown.on_piece("mine", 1) is None
    assert shown.on_piece("mine", -1) is None
    assert [shown.on_piece("mine", 0) is not None for _ in range(3)] == [True, True, False]
