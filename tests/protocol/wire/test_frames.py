from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import BadPayload
from peer.protocol.wire.frames import HEADER, MAX_CHUNK, Kind, PayloadReader, PayloadWriter, pack, unpack


def frames_of(payload: bytes, size: int) -> list[bytes]:
    writer = PayloadWriter()
    return [writer.chunk(payload[i : i + size]) for i in range(0, len(payload), size)] + [writer.end()]


def collect(nbytes: int, frames: list[bytes]) -> bytes:
    reader, parts = PayloadReader(nbytes), []
    for raw in frames:
        frame = reader.take(raw)
        if frame.kind is Kind.CHUNK:
            parts.append(frame.body)
    assert reader.complete
    return b"".join(parts)


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_round_trip(payload: bytes, size: int) -> None:
    assert collect(len(payload), frames_of(payload, size)) == payload


def test_golden_bytes() -> None:
    opening = pack(Kind.OPEN, 0, b"hi")
    chunk, end = frames_of(b"abcd", 4)
    assert opening.hex() == "5045455201010000000000000000000002000000c2d99df56869"
    assert chunk.hex() == "5045455201020000000000000000000004000000310ac89261626364"
    digest = "8c9c9881805d1a847102d7a42e58b990d088dd88a84f7314d71c838107571f2b"
    assert end.hex() == "5045455201030000040000000000000020000000" + end.hex()[40:48] + digest


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda f: f[:1] + f[2:], "order"),  # a gap
        (lambda f: [f[0], f[0], *f[1:]], "order"),  # a repeated frame
        (lambda f: [f[1], f[0], *f[2:]], "order"),
        (lambda f: [f[-1]], "order"),  # END at its offset, without the chunks
        (lambda f: [pack(Kind.OPEN, 0, b""), *f], "order"),
        (lambda f: [pack(Kind.CHUNK, 0, b""), *f], "length"),
        (lambda f: [*f[:-1], pack(Kind.CHUNK, 100, b"x"), f[-1]], "length"),  # more than announced
        (lambda f: [*f[:-1], pack(Kind.END, 100, b"\0" * 32)], "digest"),
        (lambda f: [f[0], pack(Kind.END, 40, b"\0" * 32)], "length"),
        (lambda f: [f[0][:-1] + bytes([f[0][-1] ^ 1]), *f[1:]], "checksum"),
        (lambda f: [f[0][:-1], *f[1:]], "length"),
        (lambda f: [f[0] + b"x", *f[1:]], "length"),
        (lambda f: [b"QEER" + f[0][4:], *f[1:]], "frame"),
        (lambda f: [f[0][:4] + b"\x02" + f[0][5:], *f[1:]], "frame"),
        (lambda f: [b"", *f], "frame"),
        (lambda f: [HEADER.pack(b"PEER", 1, 2, 0, 0, 2**32 - 1, 0), *f], "length"),
    ],
)
def test_what_is_wrong_is_named(change: object, code: str) -> None:
    frames = frames_of(bytes(range(100)), 40)
    with pytest.raises(BadPayload) as caught:
        collect(100, change(frames))  # type: ignore[operator]
    assert caught.value.code == code


def test_nothing_follows_the_end() -> None:
    reader, frames = PayloadReader(4), frames_of(b"abcd", 4)
    for frame in frames:
        reader.take(frame)
    with pytest.raises(BadPayload):
        reader.take(frames[0])


def test_a_chunk_is_at_most_a_mebibyte() -> None:
    with pytest.raises(BadPayload) as caught:
        unpack(pack(Kind.CHUNK, 0, b"x" * (MAX_CHUNK + 1)))
    assert caught.value.code == "length"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_bad_payload(raw: bytes) -> None:
    try:
        frame = unpack(raw)
    except BadPayload:
        return
    assert pack(frame.kind, frame.offset, frame.body) == raw


def test_every_flipped_bit_is_noticed() -> None:
    rng = random.Random(3)
    frames = frames_of(bytes(range(200)), 64)
    for index, frame in enumerate(frames):
        for _ in range(200):
            bit = rng.randrange(8 * len(frame))
            torn = bytearray(frame)
            torn[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BadPayload):
                collect(200, [*frames[:index], bytes(torn), *frames[index + 1 :]])
