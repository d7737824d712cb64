"""Two signatures of one owner over different results prove a fault; nothing less does."""

from __future__ import annotations

from dataclasses import replace

from peer.identity import Identity
from peer.protocol.group.receipts import NO_VOUCHERS, ShardReceipt, Vouchers, contradictions, digest_of, statement
from peer.protocol.messages import PeerId
from peer.transport.signing import KeySigner

OWNERS = [Identity.generate() for _ in range(2)]
IDS = [PeerId(owner.peer_id) for owner in OWNERS]
ROSTER, OTHER_ROSTER = b"r" * 32, b"o" * 32
VERIFY = KeySigner(OWNERS[0]).verify


def vouched(*payloads: bytes, roster: bytes = ROSTER, signers: tuple[int, ...] = (0, 1)) -> Vouchers:
    shown = []
    for shard, payload in enumerate(payloads):
        digest = digest_of(payload, (0, 1))
        signature = KeySigner(OWNERS[signers[shard]]).sign(statement(roster, shard, digest))
        shown.append(ShardReceipt(shard, digest, signature))
    return Vouchers(roster, tuple(shown))


def against(ours: Vouchers, theirs: Vouchers) -> list[tuple[PeerId, int]]:
    return list(contradictions(ours, theirs, IDS, VERIFY))


def test_two_results_of_one_shard_convict_its_owner() -> None:
    assert against(vouched(b"a", b"b"), vouched(b"a", b"x")) == [(IDS[1], 1)]
    assert against(vouched(b"a", b"b"), vouched(b"y", b"x")) == [(IDS[0], 0), (IDS[1], 1)]


def test_the_same_results_or_those_of_another_round_convict_nobody() -> None:
    assert against(vouched(b"a", b"b"), vouched(b"a", b"b")) == []
    assert against(vouched(b"a", b"b"), vouched(b"a", b"x", roster=OTHER_ROSTER)) == []
    assert against(vouched(b"a", b"b"), vouched(b"a")) == []
    assert against(NO_VOUCHERS, vouched(b"a", b"x")) == []
    assert against(NO_VOUCHERS, NO_VOUCHERS) == []


def test_nobody_can_be_framed() -> None:
    ours = vouched(b"a", b"b")
    assert against(ours, vouched(b"a", b"x", signers=(0, 0))) == [], "signed by somebody else"
    moved = replace(vouched(b"x", b"b").shards[0], shard=1)
    assert against(ours, Vouchers(ROSTER, (moved,))) == [], "a signature over another shard"
    replayed = vouched(b"a", b"x", roster=OTHER_ROSTER)
    assert against(ours, replace(replayed, roster=ROSTER)) == [], "a signature over another round"
    beyond = ShardReceipt(7, ours.shards[0].digest, ours.shards[0].signature)
    assert against(replace(ours, shards=(beyond,)), Vouchers(ROSTER, (replace(beyond, digest=b"d" * 32),))) == []


def test_who_is_named_is_part_of_the_result() -> None:
    assert digest_of(b"a", (0, 1)) != digest_of(b"a", (0,))
    assert digest_of(b"\0\1a", ()) != digest_of(b"a", (1,)), "where the names end is part of it, too"
