"""A statement has exactly one encoding, and the partner's statement follows from ours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from peer.protocol.messages import MAX_ROUND, RoundKey, RunId
from peer.protocol.pair.receipt import (
    MAX_GAIN,
    NOT_MEASURED,
    PURPOSE,
    SwapOpinion,
    SwapStatement,
    Transferred,
    digest_of_parts,
    gain_bucket,
)
from peer.protocol.wire.fields import pack_fields, unpack_fields
from tests.support.signed_receipts import Signing

ONE, OTHER = Signing(), Signing()
OPINION = SwapOpinion(4096, accepted=True, gain=3)
SAID = ONE.said(OTHER.id, 7, OPINION)


def test_what_was_signed_is_read_again() -> None:
    assert SwapStatement.from_bytes(SAID.to_bytes()) == SAID
    assert SAID.to_bytes().startswith(PURPOSE)


def test_every_other_sequence_of_bytes_is_read_as_something_else_or_not_at_all() -> None:
    raw = SAID.to_bytes()
    for at in range(len(raw)):
        for mask in (1, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[at] ^= mask
            try:
                read = SwapStatement.from_bytes(bytes(changed))
            except ValueError:
                continue
            assert read.to_bytes() == bytes(changed) != raw
    for wrong in (b"", raw[:-1], raw + b"\0", PURPOSE, raw[1:]):
        with pytest.raises(ValueError, match=r"fields|statement|cut off"):
            SwapStatement.from_bytes(wrong)


def test_the_partners_statement_names_the_same_transfer_from_its_side() -> None:
    theirs = SAID.mirrored(SwapOpinion(8192, accepted=False))
    assert (theirs.signer, theirs.partner) == (OTHER.id, ONE.id)
    assert (theirs.received, theirs.sent) == (SAID.sent, SAID.received)
    assert theirs.mirrored(OPINION) == SAID


@pytest.mark.parametrize(
    "changed",
    [
        replace(SAID, partner=SAID.signer),
        replace(SAID, run_id=RunId(b"short")),
        replace(SAID, key=RoundKey(MAX_ROUND + 1, 0)),
        replace(SAID, received=Transferred(b"d" * 31, 5)),
        replace(SAID, sent=Transferred(b"d" * 32, 2**60)),
        replace(SAID, opinion=SwapOpinion(2**60, accepted=True)),
        replace(SAID, opinion=SwapOpinion(1, accepted=True, gain=MAX_GAIN + 1)),
    ],
)
def test_impossible_statements_are_not_read(changed: SwapStatement) -> None:
    with pytest.raises(ValueError, match=r"another length|cannot be one|itself|beyond all bounds|impossible"):
        SwapStatement.from_bytes(changed.to_bytes())


def test_gains_fall_into_buckets_that_double() -> None:
    assert gain_bucket(math.nan) == NOT_MEASURED
    assert [gain_bucket(nats) for nats in (-1.0, 0.0, 1e-9, 1e-4, 1.5e-4, 3e-4)] == [1, 1, 2, 2, 3, 4]
    assert gain_bucket(1e9) == gain_bucket(math.inf) == MAX_GAIN


def test_a_payload_in_parts_has_a_digest_of_its_own() -> None:
    one, two = b"1" * 32, b"2" * 32
    assert digest_of_parts([one]) == one
    assert len({digest_of_parts(parts) for parts in ([one], [two], [one, two], [two, one], [one, one])}) == 5


def test_fields_have_one_encoding() -> None:
    assert unpack_fields(pack_fields(b"", b"abc", b"\0"), 3) == [b"", b"abc", b"\0"]
    for wrong in (b"\0", b"\0\3ab", b"\0\1a\0", pack_fields(b"a")):
        with pytest.raises(ValueError, match=r"cut off|1 fields|2 fields|3 fields"):
            unpack_fields(wrong, 2)
