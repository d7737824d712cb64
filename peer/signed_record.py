"""Encodes a peer's record of the directory as signed bytes, and checks such bytes.

`unseal` checks everything that does not depend on run and time. `open_record` also checks that the record is of this
run and valid now."""

from __future__ import annotations

import ipaddress
import math
import re
import threading
from collections import OrderedDict

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import ExchangeError
from peer.identity import Identity, is_peer_id, peer_id_of, verify
from peer.protocol.messages import (
    MAX_BLOCK_CHARS,
    MAX_ENDPOINTS,
    MAX_RECORD_BYTES,
    MAX_RECORD_TTL_S,
    MAX_RELAYS,
    MAX_ROUND,
    START_NONCE_BYTES,
    PeerId,
    PeerRecord,
    RelayAddress,
    RelayAttestation,
    RunId,
    Status,
)
from peer.v1 import exchange_pb2 as pb

DOMAIN = b"peer record v1"
MAX_CLOCK_AHEAD_S = 60.0
"""Seconds by which a record's time of issue may be in the future: the accepted error of a volunteer's clock."""
MAX_ENDPOINT_CHARS = 128
SIGNATURE_BYTES = 64
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
MAX_UNSEALED = 4096
_unsealed: OrderedDict[bytes, tuple[bytes, PeerRecord]] = OrderedDict()
"""Public key -> the last valid record and its bytes.

A cache: the same record is read again from every node that stores it. It holds one record (1 KB) per peer, because a
peer signs a new one each round."""
_remembering = threading.Lock()
"""Guards `_unsealed`, because threads check records too."""


class InvalidRecord(ExchangeError):
    """A record of the directory is invalid, or not valid in this run at this time. `code` is stable, `reason` is for
    people.

    Codes that do not depend on run and time: too_large, garbled, signature, run_id, endpoints, relays, wire, start,
    numbers, status, expiry. Of run and time: foreign_run, future, expired. Of a DHT node's admission: layout. Of its
    store: full."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


def seal(record: PeerRecord, identity: Identity) -> bytes:
    """Sign our own record. Return a serialized `SignedRecord`. Raises InvalidRecord for a record that other peers would
    refuse."""
    assert record.peer_id == identity.peer_id, "a peer signs for itself alone"
    _check_form(record)
    body = pb.RecordBody(
        run_id=record.run_id,
        endpoints=record.endpoints,
        reachable=record.reachable,
        wire_min=record.wire_min,
        wire_max=record.wire_max,
        round=record.round,
        tokens_per_s=record.tokens_per_s,
        status=record.status.value,
        issued_at=record.issued_at,
        expires_at=record.expires_at,
        relays=map(_packed, record.relays),
        mapped=record.mapped,
        start=record.start,
    ).SerializeToString()
    signed = pb.SignedRecord(public_key=identity.public_key, body=body, signature=identity.sign(DOMAIN, body))
    raw: bytes = signed.SerializeToString()
    if len(raw) > MAX_RECORD_BYTES:
        raise InvalidRecord(Code.TOO_LARGE, f"a record of {len(raw)} bytes; at most {MAX_RECORD_BYTES} are taken")
    return raw


def open_record(raw: bytes, run_id: RunId, now: float) -> PeerRecord:
    """Return the record in `raw` if it is of this run and valid now. `now`: seconds since the epoch. Raises
    InvalidRecord."""
    record = unseal(raw)
    check_current(record, run_id, now)
    if record.expires_at <= now:
        raise InvalidRecord(Code.EXPIRED, f"expired {now - record.expires_at:.1f} s ago")
    return record


def check_current(record: PeerRecord, run_id: RunId, now: float) -> None:
    """Raise InvalidRecord for a record of another run or from the future. An expired record passes."""
    if record.run_id != run_id:
        raise InvalidRecord(Code.FOREIGN_RUN, f"belongs to run {record.run_id.hex()[:16]}")
    check_issued(record, now)


def check_issued(record: PeerRecord, now: float) -> None:
    """Raise InvalidRecord for a record from further in the future than clocks may be off."""
    if record.issued_at > now + MAX_CLOCK_AHEAD_S:
        raise InvalidRecord(Code.FUTURE, f"issued {record.issued_at - now:.0f} s in the future")


def unseal(raw: bytes) -> PeerRecord:
    """Check everything of a record that does not depend on run and time: size, form, signature. Raises InvalidRecord.

    The peer id is derived from the key that signed; the body cannot name another."""
    if len(raw) > MAX_RECORD_BYTES:
        raise InvalidRecord(Code.TOO_LARGE, f"{len(raw)} bytes; at most {MAX_RECORD_BYTES} are taken")
    try:
        signed = pb.SignedRecord.FromString(raw)
    except DecodeError:
        raise InvalidRecord(Code.GARBLED, "not a signed record") from None
    known = _unsealed.get(signed.public_key)
    if known is not None and known[0] == raw:
        return known[1]
    record = _verified(signed)
    with _remembering:
        _unsealed[signed.public_key] = (raw, record)
        _unsealed.move_to_end(signed.public_key)
        while len(_unsealed) > MAX_UNSEALED:
            _unsealed.popitem(last=False)
    return record


def _verified(signed: pb.SignedRecord) -> PeerRecord:
    try:
        body = pb.RecordBody.FromString(signed.body)
    except DecodeError:
        raise InvalidRecord(Code.GARBLED, "not a signed record") from None
    if len(signed.public_key) != 32 or not verify(signed.public_key, DOMAIN, signed.body, signed.signature):
        named = peer_id_of(signed.public_key) if len(signed.public_key) == 32 else "nobody"
        raise InvalidRecord(Code.SIGNATURE, f"not signed by the key it names, that of {named}")
    record = PeerRecord(
        peer_id=PeerId(peer_id_of(signed.public_key)),
        run_id=RunId(body.run_id),
        endpoints=tuple(body.endpoints),
        reachable=body.reachable,
        wire_min=body.wire_min,
        wire_max=body.wire_max,
        round=body.round,
        tokens_per_s=body.tokens_per_s,
        status=_status(body.status),
        issued_at=body.issued_at,
        expires_at=body.expires_at,
        relays=tuple(map(_relay, body.relays)),
        mapped=body.mapped,
        start=body.start,
    )
    _check_form(record)
    return record


def _packed(relay: RelayAddress) -> pb.RelayAddress:
    packed, word = pb.RelayAddress(peer_id=relay.peer_id, endpoint=relay.endpoint), relay.attestation
    if word is not None:
        packed.word.CopyFrom(pb.RelayWord(block=word.block, until=word.until, signature=word.signature))
    return packed


def _relay(packed: pb.RelayAddress) -> RelayAddress:
    word = packed.word
    said = RelayAttestation(word.block, word.until, word.signature) if packed.HasField("word") else None
    return RelayAddress(PeerId(packed.peer_id), packed.endpoint, said)


def _status(word: str) -> Status:
    try:
        return Status(word)
    except ValueError:
        raise InvalidRecord(Code.STATUS, f"unknown status {word[:32]!r}") from None


def _check_form(record: PeerRecord) -> None:
    if len(record.run_id) != 32:
        raise InvalidRecord(Code.RUN_ID, f"a run id of {len(record.run_id)} bytes instead of 32")
    if len(record.endpoints) > MAX_ENDPOINTS:
        raise InvalidRecord(Code.ENDPOINTS, f"{len(record.endpoints)} endpoints; at most {MAX_ENDPOINTS} are taken")
    for endpoint in record.endpoints:
        if not is_endpoint(endpoint):
            raise InvalidRecord(Code.ENDPOINTS, f"{endpoint[:MAX_ENDPOINT_CHARS]!r} is not host:port")
    _check_relays(record)
    if not 1 <= record.wire_min <= record.wire_max:
        raise InvalidRecord(Code.WIRE, f"wire versions {record.wire_min}..{record.wire_max}")
    if len(record.start) not in (0, START_NONCE_BYTES):
        raise InvalidRecord(Code.START, f"a start's nonce of {len(record.start)} bytes instead of {START_NONCE_BYTES}")
    _check_numbers(record)


def _check_relays(record: PeerRecord) -> None:
    if len(record.relays) > MAX_RELAYS:
        raise InvalidRecord(Code.RELAYS, f"{len(record.relays)} relays; at most {MAX_RELAYS} are taken")
    for relay in record.relays:
        if not is_peer_id(relay.peer_id) or relay.peer_id == record.peer_id or not is_endpoint(relay.endpoint):
            raise InvalidRecord(Code.RELAYS, f"{relay.peer_id[:64]!r} at {relay.endpoint[:64]!r} is no relay")
        if relay.attestation is not None and not is_well_formed(relay.attestation):
            raise InvalidRecord(Code.RELAYS, f"{relay.attestation.block[:64]!r} is no word on an address")


def is_well_formed(word: RelayAttestation) -> bool:
    """Return whether a relay's statement about an address has a valid form. The signature is not checked."""
    named = 0 < len(word.block) <= MAX_BLOCK_CHARS and word.block.isascii() and word.block.isprintable()
    return named and len(word.signature) == SIGNATURE_BYTES


def _check_numbers(record: PeerRecord) -> None:
    numbers = (record.tokens_per_s, record.issued_at, record.expires_at, float(record.round))
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise InvalidRecord(Code.NUMBERS, "a number that is not finite, or below 0")
    if record.round > MAX_ROUND:
        raise InvalidRecord(Code.NUMBERS, f"an impossible round: {record.round}")
    if not 0 <= record.expires_at - record.issued_at <= MAX_RECORD_TTL_S:
        lifetime = record.expires_at - record.issued_at
        raise InvalidRecord(Code.EXPIRY, f"lives {lifetime:.1f} s; at most {MAX_RECORD_TTL_S:.0f} s are taken")


def is_endpoint(text: str) -> bool:
    """Return whether this is `host:port`.

    The host is a name, an IPv4 address, or an IPv6 address in brackets. The port is 1 to 65535."""
    host, colon, port = text.rpartition(":")
    if len(text) > MAX_ENDPOINT_CHARS or not colon or not _PORT.match(port) or int(port) > 65535:
        return False
    if host.startswith("[") and host.endswith("]"):
        if "%" in host:  # a zone is only valid on one machine, and may contain any character
            return False
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return True
    return _NAME.match(host) is not None
