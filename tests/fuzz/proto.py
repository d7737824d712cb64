"""Mutations of protobuf messages: one field changes while all enclosing lengths stay valid, so that the code behind the
parser is reached."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from tests.fuzz.mutate import LENGTHS, varint

VARINT, FIXED64, BYTES = 0, 1, 2
DOUBLES = tuple(struct.pack("<d", x) for x in (float("nan"), float("inf"), -1.0, 0.0, 1.0, 1e308, 5e-324, 1.75e9))
TEXTS = (b"", b"\0", b"x" * 200, b"[::1%\n]:80", "é".encode(), b"\xff\xfe", b"a:1", b"\x1b[2J", b"r" * 32)
Field = tuple[int, int, bytes]
"""(number, wire type, value; a varint still encoded)"""


def fields_of(data: bytes) -> list[Field] | None:
    """Return the fields of a message; None: it is not a message of the supported wire types."""
    found, at = [], 0
    while at < len(data):
        tag = _varint_at(data, at)
        at += len(varint(tag)) if tag is not None else 0
        if tag is None or tag < 8:
            return None
        if tag & 7 == VARINT:
            value = _varint_at(data, at)
            raw = b"" if value is None else varint(value)
        elif tag & 7 == FIXED64:
            raw = data[at : at + 8] if at + 8 <= len(data) else b""
        elif tag & 7 == BYTES and (length := _varint_at(data, at)) is not None and length <= len(data):
            at += len(varint(length))
            if at + length > len(data):
                return None
            raw = data[at : at + length]
        else:
            return None
        if not raw and tag & 7 != BYTES:
            return None
        found.append((tag >> 3, tag & 7, raw))
        at += len(raw)
    return found


def bytes_of(fields: Sequence[Field]) -> bytes:
    return b"".join(
        varint(number << 3 | kind) + (varint(len(value)) + value if kind == BYTES else value)
        for number, kind, value in fields
    )


def change_field(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    data[:] = _changed(rng, bytes(data), 0)


def _changed(rng: Random, data: bytes, depth: int) -> bytes:
    fields = fields_of(data)
    if not fields:
        return rng.choice(TEXTS)
    at = int(rng.random() * len(fields))
    number, kind, value = fields[at]
    choice = rng.random()
    if choice < 0.08:
        del fields[at]
    elif choice < 0.16:
        fields.insert(at, fields[int(rng.random() * len(fields))])
    elif choice < 0.2:
        fields[at] = (1 + int(rng.random() * 12), kind, value)
    else:
        fields[at] = (number, kind, _value(rng, kind, value, depth))
    return bytes_of(fields)


def _value(rng: Random, kind: int, value: bytes, depth: int) -> bytes:
    if kind == VARINT:
        return varint(rng.choice(LENGTHS) if rng.random() < 0.7 else int(rng.random() * 10))
    if kind == FIXED64:
        return rng.choice(DOUBLES) if rng.random() < 0.7 else rng.randbytes(8)
    if depth < 3 and value and rng.random() < 0.7 and fields_of(value):
        return _changed(rng, value, depth + 1)
    if not value or rng.random() < 0.3:
        return rng.choice(TEXTS)
    at = int(rng.random() * len(value))
    return value[:at] + bytes([int(rng.random() * 256)]) + value[at + int(rng.random() * 3) :]


def _varint_at(data: bytes, at: int) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return None
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value
        at += 1
    return None
