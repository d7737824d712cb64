"""Fuzz targets: DHT entries and addresses."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from random import Random

from google.protobuf.message import DecodeError

from peer.discovery import multiaddr as addresses
from peer.discovery.address_cache import MAX_CACHED, parse
from peer.discovery.keys import bucket_key, slot
from peer.discovery.validator import RecordGate, dht_expiry
from peer.errors import AddressError
from peer.identity import peer_id_of, public_key_of
from peer.signed_record import DOMAIN, InvalidRecord, is_endpoint, open_record, seal, unseal
from peer.v1 import exchange_pb2 as pb
from tests.fuzz.engine import Target
from tests.fuzz.mutate import LITERALS
from tests.fuzz.parts import join, split
from tests.fuzz.proto import DOUBLES, change_field
from tests.fuzz.wire import NOW, OWNER, RECORD, RUN, Refused

SEALED = seal(RECORD, OWNER)
DIAL = f"/ip4/192.0.2.1/tcp/4001/p2p/{OWNER.peer_id}"
OWN_SLOT = slot(bucket_key(RUN))


def sign_again(raw: bytes) -> bytes:
    """Return a record with a valid signature over its body. Bytes that are no SignedRecord are used as the body."""
    try:
        body = pb.SignedRecord.FromString(raw).body or raw
    except DecodeError:
        body = raw
    return signed(body)


def signed(body: bytes) -> bytes:
    record = pb.SignedRecord(public_key=OWNER.public_key, body=body, signature=OWNER.sign(DOMAIN, body))
    raw: bytes = record.SerializeToString()
    return raw


def change_body(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    """Change one field in the body of a SignedRecord, and sign it again."""
    try:
        body = bytearray(pb.SignedRecord.FromString(bytes(data)).body)
    except DecodeError:
        return
    change_field(rng, body, corpus, tokens)
    data[:] = signed(bytes(body))


def record() -> Target:
    def run(raw: bytes) -> None:
        got = open_record(raw, RUN, NOW + 1)
        assert all(text.isascii() and text.isprintable() for text in got.endpoints)
        assert public_key_of(got.peer_id)
        assert 0 <= got.round <= 2**53
        assert got.issued_at - 62 <= NOW < got.expires_at

    ipv6 = pb.RecordBody.FromString(pb.SignedRecord.FromString(SEALED).body)
    ipv6.endpoints.extend(["[2001:db8::1]:80", "host.example:65535"])
    corpus = (SEALED, signed(ipv6.SerializeToString()))
    return Target(name="record", run=run, corpus=corpus, refuses=(InvalidRecord,), mend=sign_again, special=change_body)


def _bin(data: bytes) -> bytes:
    return b"\xc5" + len(data).to_bytes(2, "big") + data


def gate() -> Target:
    """Pass an entry to the check for storing it in the DHT: expiry, subkey, value."""

    def run(raw: bytes) -> None:
        parts = split(raw, 3)
        if len(parts) < 3 or len(parts[0]) != 8:
            raise Refused("short")
        keeper = RecordGate(lambda: NOW)
        if not keeper.admit(OWN_SLOT, parts[1], parts[2], struct.unpack("<d", parts[0])[0]):
            raise Refused(next(iter(keeper.refused)))
        assert not keeper.refused

    def mend(raw: bytes) -> bytes:
        parts = [*split(raw, 3), b"", b"", b""]
        value = sign_again(parts[2][3:])
        try:
            expiry = dht_expiry(unseal(value))
        except InvalidRecord:
            expiry = NOW
        return join(struct.pack("<d", expiry), b"\xc4\x20" + OWNER.public_key, _bin(value))

    good = join(struct.pack("<d", dht_expiry(RECORD)), b"\xc4\x20" + OWNER.public_key, _bin(SEALED))
    return Target(name="gate", run=run, corpus=(good, mend(good)), refuses=(Refused,), mend=mend, tokens=DOUBLES)


def address() -> Target:
    """Pass a text to every parser of addresses."""

    def run(raw: bytes) -> None:
        text = raw.decode(errors="surrogateescape")
        known = [is_endpoint(text), addresses.is_dialable(text), _is(addresses.check_announced, text), _listens(text)]
        if known[1]:
            peer_id = addresses.split(text)[1]
            assert peer_id_of(public_key_of(peer_id)) == peer_id
            addresses.is_loopback(text)
        if not any(known):
            raise Refused("unknown")
        assert all(" " < character <= "~" for character in text), text

    texts = (
        DIAL,
        DIAL.replace("/ip4/192.0.2.1", "/ip6/2001:db8::1"),
        DIAL.replace("/ip4/192.0.2.1", "/dns4/a.example"),
    )
    more = ("192.0.2.1:4000", "[2001:db8::1]:80", "host.example:1", "/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/4001")
    tokens = (
        b"%",
        b"\n",
        b"::",
        b"/",
        b"\xc3\xa9",
        b"\xd9\xa3",
        b"[",
        b"]",
        b"\x1b[2J",
        b" ",
        b"0",
        b"/p2p/",
        b"99999",
    )
    corpus = tuple(text.encode() for text in texts + more)
    return Target(name="address", run=run, corpus=corpus, refuses=(Refused,), tokens=tokens, limit=600)


def _is(check: object, text: str) -> bool:
    try:
        check([text])  # type: ignore[operator]
    except AddressError:
        return False
    return True


def _listens(text: str) -> bool:
    try:
        addresses._parse_listen(text)
    except AddressError:
        return False
    return True


def peer_id() -> Target:
    def run(raw: bytes) -> None:
        text = raw.decode(errors="surrogateescape")
        assert peer_id_of(public_key_of(text)) == text

    corpus = (OWNER.peer_id.encode(), peer_id_of(b"\0" * 32).encode(), peer_id_of(b"\xff" * 32).encode())
    tokens = (b"\n", b" ", b"\xe2\x80\x83", b"1", b"0", b"\xd9\xa3")
    return Target(name="peer-id", run=run, corpus=corpus, refuses=(ValueError,), tokens=tokens, limit=200)


def cache() -> Target:
    def run(raw: bytes) -> None:
        seen, recorded = parse(raw, NOW)
        assert recorded <= seen.keys()
        assert len(seen) <= MAX_CACHED
        assert all(at <= NOW and addresses.is_dialable(known) for known, at in seen.items())

    entries = [
        {"address": DIAL, "seen": NOW - 5, "record": True},
        {"address": DIAL.replace("4001", "4002"), "seen": 1.0},
    ]
    corpus = tuple(json.dumps({"format": 1, "peers": peers}).encode() for peers in ([], entries[:1], entries))
    return Target(name="cache", run=run, corpus=corpus, refuses=(ValueError,), tokens=LITERALS, limit=65536)


TARGETS = (record, gate, address, peer_id, cache)
