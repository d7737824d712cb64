"""Mutations of valid bytes, chosen by a seeded `Random`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

Change = Callable[[Random, bytearray, "Sequence[bytes]", "Sequence[bytes]"], None]

LENGTHS = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
LITERALS = (
    b"0", b"-1", b"1e999", b"NaN", b"-Infinity", b"nan", b"inf", b"1.5", b"null", b"true", b"{}", b"[]", b'""',
    b'"\\ud800"', b'"\\u0000"', b'"x"', b"9007199254740993", b"18446744073709551616", b"1" + b"0" * 400, b"1" * 4301,
    b"[" * 300, b'{"a":' * 200, b"[1,2]", b'{"1":2}', b"0x" + b"f" * 60, b"1979-05-27",
)  # fmt: skip
_LITERAL = re.compile(rb'"[^"\n]*"|-?[0-9][0-9.eE+-]*|true|false|null|\[\]|\{\}')
_HUGE = 2**14


def mutate(
    rng: Random, corpus: Sequence[bytes], tokens: Sequence[bytes], limit: int, special: Change | None = None
) -> bytes:
    """Return one input of at most `limit` bytes. Two percent are random; the others are a member of the corpus with one
    or a few changes. `tokens`: pieces worth inserting. `special`: a change that preserves the format, applied to every
    second input."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(min(limit, 300)))
    data = bytearray(corpus[int(rng.random() * len(corpus))])
    while special is not None and rng.random() < 0.5:
        special(rng, data, corpus, tokens)
        if rng.random() < 0.6:
            return bytes(data[:limit])
    while True:
        CHANGES[int(rng.random() * len(CHANGES))](rng, data, corpus, tokens)
        if rng.random() < 0.5:
            return bytes(data[:limit])


def _at(rng: Random, data: bytearray) -> int:
    return int(rng.random() * (len(data) + 1))


def _span(rng: Random, data: bytearray) -> tuple[int, int]:
    start = _at(rng, data)
    return start, min(len(data), start + 1 + int(rng.random() ** 3 * len(data)))


def flip_bit(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    if data:
        data[int(rng.random() * len(data))] ^= 1 << int(rng.random() * 8)


def set_byte(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    if data:
        data[int(rng.random() * len(data))] = int(rng.random() * 256)


def truncate(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    del data[_at(rng, data) :]


def cut_out(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    start, end = _span(rng, data)
    del data[start:end]


def duplicate(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    start, end = _span(rng, data)
    data[end:end] = data[start:end]


def repeat(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    """Repeat a short piece, sometimes very often, for decoders of nested or listed data."""
    start = _at(rng, data)
    piece = data[start : start + 1 + int(rng.random() * 12)]
    times = _HUGE if rng.random() < 0.02 else 1 + int(rng.random() * 40)
    data[start:start] = piece * min(times, 1 + _HUGE // (len(piece) + 1))


def splice(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    other = corpus[int(rng.random() * len(corpus))]
    data[_at(rng, data) :] = other[int(rng.random() * (len(other) + 1)) :]


def overwrite_length(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    """Overwrite an integer of 1 to 8 bytes, in either byte order, or a varint, with an extreme size."""
    value, size = rng.choice(LENGTHS), 1 << int(rng.random() * 4)
    order: Literal["little", "big"] = "little" if rng.random() < 0.7 else "big"
    field = varint(value) if rng.random() < 0.3 else (value % (1 << 8 * size)).to_bytes(size, order)
    start = _at(rng, data)
    data[start : start + len(field)] = field


def insert_token(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    if tokens:
        start = _at(rng, data)
        data[start:start] = tokens[int(rng.random() * len(tokens))]
    else:
        set_byte(rng, data, corpus, tokens)


def replace_literal(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    """Replace one number, string or word of a text by another."""
    if not (found := [match.span() for match in _LITERAL.finditer(data, 0, 4096)]):
        return overwrite_length(rng, data, corpus, tokens)
    start, end = found[int(rng.random() * len(found))]
    data[start:end] = LITERALS[int(rng.random() * len(LITERALS))]
    return None


CHANGES: tuple[Change, ...] = (
    flip_bit, set_byte, truncate, cut_out, duplicate, repeat, splice, overwrite_length, insert_token,
    replace_literal, replace_literal,
)  # fmt: skip


def varint(value: int) -> bytes:
    """Encode an integer as protobuf does."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
