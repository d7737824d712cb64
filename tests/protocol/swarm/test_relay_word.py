"""Tests of relays' attestations of the address of a closed peer, and which of them are believed."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from peer.protocol.messages import PeerId, PeerRecord, RelayAddress, RelayAttestation, RunId, Status
from peer.protocol.swarm.relay_word import ATTESTATION_LASTS_S, ATTESTED_BY, attested_block, is_stale, sign_attestation

RUN, OTHER_RUN = RunId(b"w" * 32), RunId(b"o" * 32)
NODE, FRIEND, STRANGER, CLOSED = map(PeerId, ("node", "friend", "stranger", "closed"))
BLOCK = "198.51.100.0/24"
NOW = 1_750_000_000.0


def sign(relay: PeerId, raw: bytes) -> bytes:
    return hashlib.blake2b(raw, key=relay.encode(), digest_size=64).digest()


def verify(relay: PeerId, raw: bytes, signature: bytes) -> bool:
    return sign(relay, raw) == signature


def word(relay: PeerId, *, of: PeerId = CLOSED, run_id: RunId = RUN, now: float = NOW) -> RelayAttestation:
    return sign_attestation(run_id, of, BLOCK, now, lambda raw: sign(relay, raw))


def record(peer: PeerId, *relays: RelayAddress, endpoint: str = "10.0.0.1:1", reachable: bool = False) -> PeerRecord:
    return PeerRecord(peer, RUN, (endpoint,), reachable, 1, 1, 0, 0.0, Status.TRAINING, NOW, NOW + 60, relays=relays)


def at(relay: PeerId, said: RelayAttestation | None) -> RelayAddress:
    return RelayAddress(relay, "203.0.113.7:4810", said)


RECORDS = {STRANGER: record(STRANGER, endpoint="192.0.2.9:4810", reachable=True)}


def block(*relays: RelayAddress, now: float = NOW) -> str:
    return attested_block(record(CLOSED, *relays), now, {NODE}, {FRIEND}, RECORDS, verify)


def test_the_word_of_a_node_of_the_operator_is_believed() -> None:
    assert block(at(STRANGER, word(STRANGER)), at(FRIEND, word(FRIEND)), at(NODE, word(NODE))) == BLOCK


def test_those_that_a_trusted_relay_speaks_for_share_places() -> None:
    assert block(at(STRANGER, word(STRANGER)), at(FRIEND, word(FRIEND))) == ATTESTED_BY + FRIEND


def test_those_that_a_stranger_speaks_for_share_the_places_of_its_own_block() -> None:
    assert block(at(STRANGER, word(STRANGER))) == "192.0.2.0/24"
    unseen = PeerId("unseen")
    assert block(at(unseen, word(unseen))) == "", "a relay that nobody sees has no address"


@pytest.mark.parametrize(
    "said",
    [
        None,
        word(STRANGER),
        word(NODE, of=PeerId("somebody else")),
        word(NODE, run_id=OTHER_RUN),
        word(NODE, now=NOW - ATTESTATION_LASTS_S - 1),
        word(NODE, now=NOW + 3 * ATTESTATION_LASTS_S),
        replace(word(NODE), block="203.0.113.0/24"),
        replace(word(NODE), until=word(NODE).until + 1),
    ],
    ids=["none", "another's", "of another peer", "of another run", "old", "of the future", "another block", "longer"],
)
def test_a_word_that_does_not_hold_counts_for_nothing(said: RelayAttestation | None) -> None:
    assert block(at(NODE, said)) == ""


def test_a_word_is_renewed_when_half_of_it_is_over() -> None:
    fresh = word(NODE)
    assert is_stale(None, NOW)
    assert not is_stale(fresh, NOW)
    assert not is_stale(fresh, NOW + ATTESTATION_LASTS_S / 2 - 1)
    assert is_stale(fresh, NOW + ATTESTATION_LASTS_S / 2 + 2)
    assert block(at(NODE, fresh), now=NOW + ATTESTATION_LASTS_S / 2 + 2) == BLOCK, "the old one still counts"
