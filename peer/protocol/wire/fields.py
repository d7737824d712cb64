"""Canonical encoding of a fixed number of byte fields, each with a length prefix of two bytes. Equal fields have equal
encodings, and any other bytes are refused."""

from __future__ import annotations

from collections.abc import Iterator

MAX_FIELD = 2**16 - 1


def pack_fields(*fields: bytes) -> bytes:
    """Encode the fields in this order."""
    assert all(len(field) <= MAX_FIELD for field in fields), [len(field) for field in fields]
    return b"".join(len(field).to_bytes(2, "big") + field for field in fields)


def unpack_fields(raw: bytes, count: int) -> list[bytes]:
    """Decode exactly `count` fields. Raises ValueError for anything that `pack_fields` would not return."""
    fields = list(_fields(raw))
    if len(fields) != count:
        raise ValueError(f"{len(fields)} fields instead of {count}")
    return fields


def fixed(number: int, nbytes: int) -> bytes:
    """Encode a non-negative number in `nbytes` bytes, big endian."""
    return number.to_bytes(nbytes, "big")


def number_of(field: bytes, nbytes: int) -> int:
    """Decode a number of exactly `nbytes` bytes. Raises ValueError for another length."""
    if len(field) != nbytes:
        raise ValueError(f"a number of {len(field)} bytes instead of {nbytes}")
    return int.from_bytes(field, "big")


def _fields(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        start = at + 2
        at = start + int.from_bytes(raw[at:start], "big")
        if at > len(raw) or start > len(raw):
            raise ValueError("the last field is cut off")
        yield raw[start:at]
