"""Statements of relays: each is verified once, and the trust in relays decides which one counts."""

from __future__ import annotations

from collections import Counter

from peer.identity import Identity
from peer.membership.relay_words import MAX_CHECKED, RelayWords
from peer.membership.reputation import Reputation
from peer.protocol.messages import PeerId, PeerRecord, RelayAddress, RunId, Status
from peer.protocol.pair.proven import NEEDED
from peer.protocol.swarm.relay_word import ATTESTED_BY, sign_attestation
from peer.transport.signing import KeySigner

RUN = RunId(b"w" * 32)
NODE, OTHER, CLOSED = (Identity.generate() for _ in range(3))
NOW = 1_750_000_000.0


def record(*relays: RelayAddress, peer: str = CLOSED.peer_id) -> PeerRecord:
    return PeerRecord(PeerId(peer), RUN, (), False, 1, 1, 0, 0.0, Status.TRAINING, NOW, NOW + 60, relays=relays)


def at(relay: Identity, block: str = "198.51.100.0/24") -> RelayAddress:
    word = sign_attestation(RUN, PeerId(CLOSED.peer_id), block, NOW, KeySigner(relay).sign)
    return RelayAddress(PeerId(relay.peer_id), "192.0.2.7:4810", word)


def test_a_signed_word_is_checked_once_and_a_forged_one_counts_for_nothing() -> None:
    checks, signer = Counter[PeerId](), KeySigner(CLOSED)

    def verify(peer: PeerId, raw: bytes, signature: bytes) -> bool:
        checks[peer] += 1
        return signer.verify(peer, raw, signature)

    words = RelayWords(lambda: {PeerId(NODE.peer_id)}, verify, Reputation(lambda: NOW, lambda event: None))
    for _ in range(3):
        assert words.block_of(record(at(NODE)), {}, NOW) == "198.51.100.0/24"
    assert checks == {NODE.peer_id: 1}
    assert words.block_of(record(at(NODE), peer=OTHER.peer_id), {}, NOW) == "", "it is not about this peer"


def test_a_relay_that_earned_trust_is_believed_a_little() -> None:
    reputation = Reputation(lambda: NOW, lambda event: None)
    words = RelayWords(frozenset, KeySigner(CLOSED).verify, reputation)
    assert words.block_of(record(at(OTHER)), {}, NOW) == ""
    for _ in range(NEEDED):
        reputation.proven.accepted(PeerId(OTHER.peer_id))
    assert words.block_of(record(at(OTHER)), {}, NOW) == ATTESTED_BY + OTHER.peer_id


def test_what_is_remembered_of_checks_is_bounded() -> None:
    words = RelayWords(lambda: {PeerId(NODE.peer_id)}, lambda *of: False, Reputation(lambda: NOW, lambda event: None))
    for number in range(MAX_CHECKED + 100):
        words._holds(PeerId(NODE.peer_id), b"", number.to_bytes(64, "big"))
    assert len(words._checked) == MAX_CHECKED
