"""The block codecs: rounding of ties, and payloads that are rejected."""

from __future__ import annotations

import pytest
import torch

from peer.codec.blocks import E3M0, INT4, INT8
from peer.codec.plain import Codec
from peer.errors import BadPayload


@pytest.mark.parametrize(("codec", "top"), [(INT8, 127), (INT4, 7)])
def test_ties_go_to_the_even_level(codec: Codec, top: int) -> None:
    values = torch.tensor([float(top), 0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    decoded = codec.decode(codec.encode(values), 7)
    assert torch.allclose(decoded, torch.tensor([float(top), 0, 2, 2, 0, -2, -2]), rtol=1e-6)


def test_every_power_survives_and_ties_go_to_the_even_code() -> None:
    powers = torch.tensor([0.0, *(2.0**e for e in range(-6, 1))])
    values = torch.cat([powers, -powers])
    assert torch.equal(E3M0.decode(E3M0.encode(values), 16), values)
    middles = (powers[1:] + powers[:-1]) / 2
    decoded = E3M0.decode(E3M0.encode(torch.cat([middles, torch.ones(1)])), 8)[:7]
    assert torch.equal(decoded, powers[[0, 2, 2, 4, 4, 6, 6]])


def test_each_block_has_its_own_scale() -> None:
    values = torch.cat([torch.full((128,), 1000.0), torch.full((3,), 0.001)])
    for codec in (INT8, INT4, E3M0):
        assert torch.equal(codec.decode(codec.encode(values), 131), values)


@pytest.mark.parametrize(("codec", "unused"), [(INT8, b"\x80"), (INT4, b"\x08"), (INT4, b"\x80")])
def test_a_code_below_the_lowest_level_is_refused(codec: Codec, unused: bytes) -> None:
    elements = 2 if codec is INT4 else 1
    payload = codec.encode(torch.ones(elements))[:4] + unused
    with pytest.raises(BadPayload) as caught:
        codec.decode(payload, elements)
    assert caught.value.code == "code"
