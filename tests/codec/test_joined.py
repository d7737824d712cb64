"""The codec for joined sparse vectors: values, bytes, and payloads that are rejected."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from peer.codec.joined import decode_joined, encode_joined
from peer.codec.registry import EVERY
from peer.errors import BadPayload
from peer.methods.codec_specs import joined_nbytes


def sparse(elements: int, share: float, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=rng)
    return values * (torch.rand(elements, generator=rng) < share)


def decoded(payload: bytes, elements: int) -> Tensor:
    into = torch.full((elements,), math.nan)
    decode_joined(payload, into)
    return into


@pytest.mark.parametrize("elements", [1, 7, 8, 9, 4096, 100_003, 2**18 + 5])
@pytest.mark.parametrize("share", [0.0, 0.12, 1.0])
def test_the_elements_that_are_there_come_as_int8_and_the_rest_as_zero(elements: int, share: float) -> None:
    values = sparse(elements, share, elements)
    payload, there = encode_joined(values), values != 0
    assert len(payload) == joined_nbytes(elements, int(there.sum()))
    got = decoded(payload, elements)
    codec = EVERY["int8"]
    assert torch.equal(got[there], codec.decode(codec.encode(values[there]), int(there.sum())))
    assert not got[~there].any()


def test_golden_bytes() -> None:
    values = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -2.5, 0.0])
    assert encode_joined(values).hex() == "0201" + "00002040" + "3381"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "length"),
        (b"\x01", "length"),
        (b"\x01\x00", "length"),
        (encode_joined(torch.ones(10))[:-1], "length"),
        (encode_joined(torch.ones(10)) + b"\0", "length"),
        (b"\xff\x07" + encode_joined(torch.ones(10))[2:], "index"),
        (b"\xff\x01" + encode_joined(torch.ones(10))[2:], "length"),
        (b"\x01\x00" + b"\xff" * 5, "scale"),
        (b"\x01\x00" + b"\0\0\x80\x3f" + b"\x80", "code"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused(payload: bytes, code: str) -> None:
    with pytest.raises(BadPayload) as caught:
        decoded(payload, 10)
    assert caught.value.code == code


def test_hostile_bytes_are_refused_or_finite() -> None:
    rng, good, refused = torch.Generator().manual_seed(7), encode_joined(sparse(3000, 0.1)), 0
    for _ in range(300):
        payload = bytearray(good)
        place, byte = (int(torch.randint(0, most, (1,), generator=rng)) for most in (len(good), 256))
        payload[place] = byte
        try:
            assert bool(decoded(bytes(payload), 3000).isfinite().all())
        except BadPayload:
            refused += 1
    assert 0 < refused < 300
