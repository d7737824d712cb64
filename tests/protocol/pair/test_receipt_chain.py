"""A chain is valid as its owner wrote it, and invalid with any byte changed or any entry moved, removed or repeated."""

from __future__ import annotations

import pytest

from peer.protocol.pair.receipt import SwapOpinion
from peer.protocol.pair.receipt_chain import BrokenChain, ChainCheck, Countersigned, PartnerTotals, hash_of, head_record
from peer.transport.signing import holds
from tests.support.signed_receipts import RUN, Signing, chained, countersigned

OWNER, ONE, OTHER = Signing(), Signing(), Signing()
YES, NO = SwapOpinion(100, accepted=True, gain=4), SwapOpinion(30, accepted=False, gain=1)
RECEIPTS = [
    countersigned(OWNER, ONE, 3, YES, YES),
    countersigned(OWNER, OTHER, 4, YES, NO),
    countersigned(OWNER, ONE, 6, NO, YES),
]
CHAIN = chained(OWNER, RECEIPTS)


def checked(records: list[bytes]) -> ChainCheck:
    check = ChainCheck(holds)
    for record in records:
        check.take(record)
    return check


def breaks(records: list[bytes]) -> tuple[int, str]:
    with pytest.raises(BrokenChain) as caught:
        checked(records)
    return caught.value.entry, caught.value.why


def test_a_chain_tells_who_exchanged_what_with_whom() -> None:
    check = checked(CHAIN)
    assert (check.run_id, check.owner, check.entries) == (RUN, OWNER.id, 3)
    assert (check.first_round, check.last_round) == (3, 6)
    assert check.partners[ONE.id] == PartnerTotals(
        rounds=2, accepted=1, accepted_by_it=2, bytes_received=2009, bytes_sent=4000
    )
    assert check.partners[OTHER.id] == PartnerTotals(
        rounds=1, accepted=1, accepted_by_it=0, bytes_received=1004, bytes_sent=2000
    )


def test_an_empty_chain_holds() -> None:
    assert checked(CHAIN[:1]).entries == 0


def test_entries_cannot_be_moved_removed_or_repeated() -> None:
    follow = "it does not follow the record before it"
    assert breaks([CHAIN[0], CHAIN[2], CHAIN[1]]) == (1, follow)
    assert breaks([CHAIN[0], CHAIN[2], CHAIN[3]]) == (1, follow)
    assert breaks([CHAIN[0], CHAIN[1], CHAIN[3]]) == (2, follow)
    assert breaks([*CHAIN, CHAIN[3]]) == (4, follow)
    assert breaks(CHAIN[1:])[0] == 0


def test_its_owner_cannot_count_a_round_twice() -> None:
    assert breaks(chained(OWNER, [*RECEIPTS, RECEIPTS[0]])) == (4, "a second receipt for round 3")


def test_its_owner_cannot_speak_for_a_partner() -> None:
    first = RECEIPTS[0]
    kinder = Countersigned(first.own_statement, SwapOpinion(100, accepted=True, gain=15), first.signature)
    assert breaks(chained(OWNER, [kinder])) == (1, f"the signature of the partner {ONE.id} does not hold")
    by_itself = Countersigned(first.own_statement, first.partner_opinion, OWNER.signer.sign(first.statement.to_bytes()))
    assert breaks(chained(OWNER, [by_itself]))[0] == 1


def test_nobody_can_use_the_receipts_of_another() -> None:
    assert breaks(chained(ONE, RECEIPTS)) == (1, "it is of another run or another owner")
    stolen = [head_record(RUN, OWNER.id, ONE.signer.sign)]
    assert breaks(stolen) == (0, "the signature of the owner does not hold")


def test_receipts_of_another_run_do_not_count() -> None:
    assert breaks(chained(OWNER, RECEIPTS, type(RUN)(b"O" * 32))) == (1, "it is of another run or another owner")


def test_the_hash_covers_the_signature() -> None:
    again = chained(OWNER, RECEIPTS)
    assert again == CHAIN, "Ed25519 signs alike each time"
    assert hash_of(CHAIN[1]) != hash_of(CHAIN[1][:-1])
