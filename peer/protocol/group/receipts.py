"""Receipts of shard owners: an owner signs the one result that it sends to all members in a round. Each member keeps
the owner's signature over its result, and shows it to the leader of the fragment's next round. Two signatures of one
owner over different results of one shard prove a fault. The module is pure: the caller signs and verifies."""

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
    """An owner's signature over the result of one shard."""

    shard: int
    digest: bytes
    """`digest_of` the result, 32 bytes."""
    signature: bytes
    """The owner's over `statement`, 64 bytes."""


@dataclass(frozen=True, slots=True)
class Vouchers:
    """The receipts of one round, as far as its results came."""

    roster: bytes = b""
    """The roster's name, 32 bytes. Empty: there is none yet."""
    shards: tuple[ShardReceipt, ...] = ()
    """Ascending."""


NO_VOUCHERS = Vouchers()


def digesting(named: Sequence[int]) -> blake3:
    """Begin the hash of a result. The caller adds the encoded mean, part by part."""
    return blake3(b"".join(number.to_bytes(2, "big") for number in (len(named), *named)))


def digest_of(payload: bytes | bytearray | memoryview, named: Sequence[int]) -> bytes:
    """BLAKE3 of a result: the encoded mean, and who is in it."""
    return digesting(named).update(payload).digest()


def statement(roster: bytes, shard: int, digest: bytes) -> bytes:
    """Return the bytes that the owner signs. They cannot be taken for a roster, which is JSON."""
    assert len(roster) == len(digest) == 32, (roster, digest)
    return _PURPOSE + roster + shard.to_bytes(2, "big") + digest


def part_statement(roster: bytes, shard: int, tokens: int, digest: bytes) -> bytes:
    """Return the bytes that a member signs with its contribution. `digest`: BLAKE3 of its payload."""
    assert len(roster) == len(digest) == 32, (roster, digest)
    return _PART_PURPOSE + roster + shard.to_bytes(2, "big") + tokens.to_bytes(8, "big") + digest


def shown_statement(roster: bytes, shard: int, result: bytes, shown: bytes) -> bytes:
    """Return the bytes that an owner signs with the parts it says it averaged. `result`: the digest of the result.
    `shown`: BLAKE3 of all that it shows."""
    assert len(roster) == len(result) == len(shown) == 32, (roster, result, shown)
    return _SHOWN_PURPOSE + roster + shard.to_bytes(2, "big") + result + shown


def draw_statement(roster: bytes) -> bytes:
    """Return the bytes whose signature tells a member which result it makes again. It is never shown, so nobody can
    foresee that."""
    return _DRAW_PURPOSE + roster


def contradictions(
    ours: Vouchers, theirs: Vouchers, owners: Sequence[PeerId], verify: Callable[[PeerId, bytes, bytes], bool]
) -> Iterator[tuple[PeerId, int]]:
    """Return the owners that signed two results of one shard, and that shard. `owners`: of each shard of the round of
    `ours`. A receipt whose signature does not hold proves nothing. verify(peer, raw, signature)."""
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
