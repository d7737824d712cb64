"""A stranger can store only its own, complete and current record, both with a peer and in a DHT node."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from peer.discovery.keys import bucket_key, slot
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.protocol.messages import (
    MAX_RECORD_BYTES,
    MAX_RECORD_TTL_S,
    PeerId,
    PeerRecord,
    RelayAddress,
    RelayAttestation,
    RunId,
    Status,
)
from peer.protocol.swarm.buckets import MAX_DEPTH, places_of
from peer.signed_record import DOMAIN, InvalidRecord, open_record, seal, unseal
from peer.v1 import exchange_pb2 as pb

RUN = RunId(b"r" * 32)
NOW = 1_750_000_000.0
OWNER = Identity.generate()


def record(owner: Identity = OWNER, **changes: Any) -> PeerRecord:
    base = PeerRecord(
        PeerId(owner.peer_id), RUN, ("192.0.2.1:4000",), True, 1, 1, 3, 10.0, Status.TRAINING, NOW, NOW + 60.0
    )
    return replace(base, **changes)


def signed_body(owner: Identity = OWNER, **changes: Any) -> bytes:
    """Return a record with a valid signature over an arbitrary body."""
    body = pb.RecordBody.FromString(pb.SignedRecord.FromString(seal(record(owner), owner)).body)
    for name, value in changes.items():
        if isinstance(value, list):
            body.ClearField(name)
            getattr(body, name).extend(value)
        else:
            setattr(body, name, value)
    return signed(body.SerializeToString(), owner)


def signed(body: bytes, owner: Identity = OWNER) -> bytes:
    return pb.SignedRecord(
        public_key=owner.public_key, body=body, signature=owner.sign(DOMAIN, body)
    ).SerializeToString()


def refusal(raw: bytes, run_id: RunId = RUN, now: float = NOW) -> str:
    with pytest.raises(InvalidRecord) as caught:
        open_record(raw, run_id, now)
    return caught.value.code


def test_an_honest_record_opens() -> None:
    assert open_record(seal(record(), OWNER), RUN, NOW) == record()


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("run_id", {"run_id": b"r" * 31}),
        ("run_id", {"run_id": b""}),
        ("endpoints", {"endpoints": ["192.0.2.1:1"] * 9}),
        ("endpoints", {"endpoints": ["192.0.2.1"]}),
        ("endpoints", {"endpoints": ["192.0.2.1:0"]}),
        ("endpoints", {"endpoints": ["192.0.2.1:65536"]}),
        ("endpoints", {"endpoints": ["192.0.2.1:٣"]}),
        ("endpoints", {"endpoints": [":80"]}),
        ("endpoints", {"endpoints": ["2001:db8::1:80"]}),
        ("endpoints", {"endpoints": ["[2001:db8::zz]:80"]}),
        ("endpoints", {"endpoints": ["unix:/tmp/socket:1"]}),
        ("endpoints", {"endpoints": ["host name:80"]}),
        ("endpoints", {"endpoints": ["host\n:80"]}),
        ("endpoints", {"endpoints": ["a" * 126 + ":80"]}),
        ("wire", {"wire_min": 0}),
        ("wire", {"wire_min": 3, "wire_max": 2}),
        ("status", {"status": "dictator"}),
        ("status", {"status": ""}),
        ("numbers", {"tokens_per_s": math.nan}),
        ("numbers", {"tokens_per_s": math.inf}),
        ("numbers", {"tokens_per_s": -1.0}),
        ("numbers", {"issued_at": math.nan}),
        ("numbers", {"expires_at": math.inf}),
        ("expiry", {"expires_at": NOW + MAX_RECORD_TTL_S + 0.5}),
        ("expiry", {"expires_at": NOW - 1.0}),
        ("expired", {"issued_at": NOW - 60.0, "expires_at": NOW}),
        ("future", {"issued_at": NOW + 61.0, "expires_at": NOW + 100.0}),
        ("foreign_run", {"run_id": b"x" * 32}),
    ],
)
def test_a_properly_signed_record_is_refused_for_what_it_says(code: str, changes: dict[str, Any]) -> None:
    assert refusal(signed_body(**changes)) == code


def test_what_is_just_within_the_bounds_opens() -> None:
    changes = {"endpoints": ["a" * 125 + ":80"] * 8, "issued_at": NOW + 59.0, "expires_at": NOW + 179.0}
    assert open_record(signed_body(**changes), RUN, NOW).endpoints == ("a" * 125 + ":80",) * 8


RELAY = Identity.generate()
WORD = RelayAttestation("2001:db8:1200:3400::/56", 2**40, b"s" * 64)
RELAYED = RelayAddress(PeerId(RELAY.peer_id), "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535", WORD)


def test_a_closed_peer_names_its_relays_and_what_they_say_of_its_address() -> None:
    silent = RelayAddress(PeerId(RELAY.peer_id), "192.0.2.9:4810")
    closed = record(reachable=False, relays=(RELAYED, silent))
    raw = seal(closed, OWNER)
    assert open_record(raw, RUN, NOW) == closed
    endpoints = tuple(f"[2001:db8:ffff:ffff:ffff:ffff:ffff:{number:x}]:65535" for number in range(8))
    longest = seal(record(reachable=False, endpoints=endpoints, relays=(RELAYED,) * 3), OWNER)
    assert len(longest) < MAX_RECORD_BYTES


@pytest.mark.parametrize(
    "relay",
    [
        replace(RELAYED, peer_id=PeerId(OWNER.peer_id)),
        replace(RELAYED, peer_id=PeerId("nobody")),
        replace(RELAYED, endpoint="nowhere"),
        replace(RELAYED, attestation=replace(WORD, block="")),
        replace(RELAYED, attestation=replace(WORD, block="x" * 65)),
        replace(RELAYED, attestation=replace(WORD, block="line\nline")),
        replace(RELAYED, attestation=replace(WORD, signature=b"s" * 63)),
    ],
    ids=["itself", "no key", "no address", "no block", "long block", "two lines", "short signature"],
)
def test_a_relay_that_cannot_be_is_refused(relay: RelayAddress) -> None:
    with pytest.raises(InvalidRecord, match="relays"):
        seal(record(reachable=False, relays=(relay,)), OWNER)


def test_size_is_checked_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouchable:
        @staticmethod
        def FromString(raw: bytes) -> None:  # noqa: N802
            raise AssertionError("parsed")

    raw = signed_body(endpoints=["a" * 100 + ":80"] * 8) + b"\0" * MAX_RECORD_BYTES
    monkeypatch.setattr("peer.signed_record.pb.SignedRecord", Untouchable)
    assert refusal(raw) == "too_large"


def test_no_damage_to_the_bytes_goes_unnoticed() -> None:
    raw, rng = seal(record(), OWNER), random.Random(1)
    for _ in range(300):
        damaged = bytearray(raw)
        damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        assert refusal(bytes(damaged)) in {"garbled", "signature"}
    for cut in range(len(raw)):
        assert refusal(raw[:cut]) in {"garbled", "signature"}


def test_rubbish_is_refused_and_never_raises_anything_else() -> None:
    rng = random.Random(2)
    for size in range(200):
        assert refusal(rng.randbytes(size)) in {"garbled", "signature"}
        assert refusal(signed(b"\xff" + rng.randbytes(size))) == "garbled"


def test_the_peer_id_is_that_of_the_signing_key() -> None:
    other = Identity.generate()
    raw = signed_body(other)
    assert unseal(raw).peer_id == other.peer_id


def test_a_signature_made_for_another_purpose_is_worth_nothing() -> None:
    body = pb.SignedRecord.FromString(seal(record(), OWNER)).body
    for signature in (OWNER.sign(b"peer hello v1", body), OWNER.key.sign(body), b"", b"\0" * 64):
        raw = pb.SignedRecord(public_key=OWNER.public_key, body=body, signature=signature).SerializeToString()
        assert refusal(raw) == "signature"


def packed(raw: bytes) -> bytes:
    """Encode a value as MessagePack."""
    return b"\xc4" + bytes([len(raw)]) + raw if len(raw) < 256 else b"\xc5" + len(raw).to_bytes(2, "big") + raw


def entry(rec: PeerRecord, owner: Identity = OWNER) -> tuple[bytes, bytes, bytes, float]:
    return slot(bucket_key(rec.run_id)), packed(owner.public_key), packed(seal(rec, owner)), dht_expiry(rec)


def _beside(bits: str) -> str:
    """Return a bucket that contains the other records."""
    return bits[:-1] + "10"[int(bits[-1])]


def gate(now: float = NOW) -> RecordGate:
    return RecordGate(lambda: now)


def test_the_gate_admits_an_honest_entry_again_and_again() -> None:
    door = gate()
    assert [door.admit(*entry(record())) for _ in range(3)] == [True] * 3
    assert not door.refused


def test_the_gate_admits_a_peer_in_its_own_buckets() -> None:
    _, subkey, value, expiry = entry(record())
    door = gate()
    own = [slot(bucket_key(RUN, bits)) for bits in places_of(PeerId(OWNER.peer_id))]
    assert [door.admit(key, subkey, value, expiry) for key in own] == [True] * (MAX_DEPTH + 1)


def test_the_gate_refuses_an_entry_in_the_wrong_place() -> None:
    key, subkey, value, expiry = entry(record())
    other = Identity.generate()
    wrong: list[tuple[bytes, bytes, bytes, Any]] = [
        (slot(b"anything else"), subkey, value, expiry),
        (slot(bucket_key(RunId(b"x" * 32))), subkey, value, expiry),
        (slot(bucket_key(RUN, _beside(places_of(PeerId(OWNER.peer_id))[1]))), subkey, value, expiry),
        (slot(bucket_key(RUN, _beside(places_of(PeerId(OWNER.peer_id))[-1]))), subkey, value, expiry),
        (key, packed(other.public_key), value, expiry),
        (key, OWNER.public_key, value, expiry),
        (key, b"\xc0", value, expiry),
        (key, b"", value, expiry),
        (key, subkey, value + b"\0", expiry),
        (key, subkey, value[3:], expiry),
        (key, subkey, b"\x91" + value, expiry),
        (key, subkey, b"", expiry),
        (key, subkey, b"\xc5", expiry),
        (key, subkey, packed(b"x" * (MAX_RECORD_BYTES + 1)), expiry),
        (key, subkey, value, expiry + 1e-3),
        (key, subkey, value, expiry - 1e-3),
        (key, subkey, value, math.nan),
        (key, subkey, value, math.inf),
        (key, subkey, value, "soon"),
        (key, 7, value, expiry),  # type: ignore[list-item]
        (key, subkey, ["nested"], expiry),  # type: ignore[list-item]
    ]
    door = gate()
    assert [door.admit(*attempt) for attempt in wrong] == [False] * len(wrong)
    assert door.refused.total() == len(wrong)


def test_the_gate_refuses_forged_and_future_records_but_not_expired_ones() -> None:
    key, subkey, value, expiry = entry(record())
    forged = value[:-1] + bytes([value[-1] ^ 1])
    assert not gate().admit(key, subkey, forged, expiry)
    assert not gate(NOW - 61.0).admit(key, subkey, value, expiry)
    farewell = record(status=Status.LEAVING, expires_at=NOW)
    assert gate(NOW + 1.0).admit(*entry(farewell))


def test_a_peer_does_not_seal_what_others_would_refuse() -> None:
    for changes in ({"endpoints": ("nowhere",)}, {"tokens_per_s": math.nan}, {"expires_at": NOW + 1000.0}):
        with pytest.raises(InvalidRecord):
            seal(record(**changes), OWNER)
    with pytest.raises(AssertionError):
        seal(record(Identity.generate()), OWNER)
