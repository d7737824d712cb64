"""Receipts of shard owners, and the bytes that members sign in a round.

An owner signs the one result that it sends to all members in a round. Each member stores the signature over the result
that it received, and sends it to the leader of the fragment's next round. Two signatures of one owner over different
results of the same shard prove a fault. The module is pure: the caller signs and verifies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from peer.protocol.messages import PeerId

_PURPOSE = b"shard result v1\0"
_PART_PURPOSE = b"shard part v1\0"
_SHOWN_PURPOSE = b"shard evidence v1\0"
_DRAW_PURPOSE = b"shard audit v1\0"


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """The signature of an owner over the result of one shard."""

    shard: int
    digest: bytes
    """Digest of the result (`digest_of`), 32 bytes."""
    signature: bytes
    """Signature of the owner over `statement`, 64 bytes."""


@dataclass(frozen=True, slots=True)
class Vouchers:
    """The receipts of one round, for the shards whose results arrived."""

    roster: bytes = b""
    """Name of the roster, 32 bytes. Empty: no roster yet."""
    shards: tuple[ShardReceipt, ...] = ()
    """In ascending order of shards."""


NO_VOUCHERS = Vouchers()


def digesting(named: Sequence[int]) -> blake3:
    """Return the hash of a result, to which the caller adds the encoded mean part by part. `named`: indices of
    contributors."""
    return blake3(b"".join(number.to_bytes(2, "big") for number in (len(named), *named)))


def digest_of(payload: bytes | bytearray | memoryview, named: Sequence[int]) -> bytes:
    """Return the BLAKE3 digest of a result: the encoded mean and the indices of its contributors."""
    return digesting(named).update(payload).digest()


def statement(roster: bytes, shard: int, digest: bytes) -> bytes:
    """Return the bytes that the owner signs. They cannot be a roster too, because a roster is JSON."""
    assert len(roster) == len(digest) == 32, (roster, digest)
    return _PURPOSE + roster + shard.to_bytes(2, "big") + digest


def part_statement(roster: bytes, shard: int, tokens: int, digest: bytes) -> bytes:
    """Return the bytes that a member signs with its contribution. `digest`: BLAKE3 of the payload."""
    assert len(roster) == len(digest) == 32, (roster, digest)
    return _PART_PURPOSE + roster + shard.to_bytes(2, "big") + tokens.to_bytes(8, "big") + digest


def shown_statement(roster: bytes, shard: int, result: bytes, shown: bytes) -> bytes:
    """Return the bytes that an owner signs with the contributions it claims to have averaged. `result`: digest of the
    result. `shown`: BLAKE3 of the contributions."""
    assert len(roster) == len(result) == len(shown) == 32, (roster, result, shown)
    return _SHOWN_PURPOSE + roster + shard.to_bytes(2, "big") + result + shown


def draw_statement(roster: bytes) -> bytes:
    """Return the bytes whose signature determines which result a member recomputes in its audit. The signature is never
    sent, so nobody else can predict the choice."""
    return _DRAW_PURPOSE + roster


def contradictions(
    ours: Vouchers, theirs: Vouchers, owners: Sequence[PeerId], verify: Callable[[PeerId, bytes, bytes], bool]
) -> Iterator[tuple[PeerId, int]]:
    """Yield each owner that signed two results of one shard, and the shard. `owners`: owner of each shard in the round
    of `ours`. Receipts with an invalid signature are ignored. `verify` is called with (peer, raw, signature)."""
    if not ours.roster or ours.roster != theirs.roster:
        return
    known = {voucher.shard: voucher for voucher in ours.shards}
    for voucher in theirs.shards:
        own = known.get(voucher.shard)
        if own is None or own.digest == voucher.digest or voucher.shard >= len(owners):
            continue
        owner = owners[voucher.shard]
        if all(verify(owner, statement(ours.roster, v.shard, v.digest), v.signature) for v in (own, voucher)):
            yield owner, voucher.shard
