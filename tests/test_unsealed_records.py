"""Valid records are cached: one for each peer, however often it signs a new one."""

from __future__ import annotations

import gc

import pytest

from peer import signed_record as record
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal, unseal

NOW = 1_750_000_000.0


def sealed(owner: Identity, round_: int = 0) -> bytes:
    at = NOW + round_
    told = PeerRecord(
        PeerId(owner.peer_id), RunId(b"r" * 32), ("192.0.2.1:4000",), True, 1, 1, round_, 10.0, Status.TRAINING, at, at
    )
    return seal(told, owner)


def records_of(peer_id: str) -> int:
    # By type: isinstance asks every object of the process for its __class__, and some of torch's warn.
    return sum(o.peer_id == peer_id for o in gc.get_objects() if type(o) is PeerRecord)


def test_the_same_bytes_are_verified_once() -> None:
    raw = sealed(Identity.generate())
    assert unseal(raw) is unseal(bytes(bytearray(raw)))


def test_a_peers_former_records_are_forgotten() -> None:
    owner = Identity.generate()
    for round_ in range(50):
        assert unseal(sealed(owner, round_)).round == round_
    assert records_of(owner.peer_id) == 1


def test_a_former_record_still_opens() -> None:
    owner = Identity.generate()
    first, second = sealed(owner, 1), sealed(owner, 2)
    assert [unseal(raw).round for raw in (first, second, first, second)] == [1, 2, 1, 2]


def test_no_more_peers_are_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_UNSEALED", 3)
    owners = [Identity.generate() for _ in range(5)]
    for owner in owners:
        unseal(sealed(owner))
    assert [records_of(owner.peer_id) for owner in owners] == [0, 0, 1, 1, 1]
