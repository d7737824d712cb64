"""One suite for every codec."""

from __future__ import annotations

import pytest
import torch

from peer.codec.plain import CODECS, Codec
from peer.errors import BadPayload

BYTES = {"fp32": 4, "bf16": 2}
ERROR = {"fp32": 0.0, "bf16": 2.0**-8}


@pytest.fixture(params=sorted(CODECS))
def codec(request: pytest.FixtureRequest) -> Codec:
    return CODECS[request.param]


@pytest.mark.parametrize("elements", [0, 1, 2, 3, 255, 256, 257, 100_003])
def test_round_trip_within_the_bound_and_exact_size(codec: Codec, elements: int) -> None:
    values = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
    payload = codec.encode(values)
    assert len(payload) == codec.nbytes(elements) == BYTES[codec.name] * elements
    decoded = codec.decode(payload, elements)
    assert decoded.dtype == torch.float32
    assert decoded.shape == (elements,)
    assert bool(((decoded - values).abs() <= ERROR[codec.name] * values.abs()).all())


def test_what_it_can_hold_survives_bit_for_bit(codec: Codec) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -2.0, 2.0**-126, -(2.0**127), 1e-40])
    once = codec.decode(codec.encode(values), len(values))
    twice = codec.decode(codec.encode(once), len(values))
    assert torch.equal(once, twice)
    assert torch.equal(torch.signbit(once), torch.signbit(values))


def test_deterministic(codec: Codec) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(5))
    assert codec.encode(values) == codec.encode(values.clone())


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_refused(codec: Codec, change: int) -> None:
    payload = codec.encode(torch.ones(8))
    wrong = payload[:change] if change < 0 else payload + b"\0"
    with pytest.raises(BadPayload) as caught:
        codec.decode(wrong, 8)
    assert caught.value.code == "length"


def test_not_finite_values_are_carried_and_not_hidden(codec: Codec) -> None:
    decoded = codec.decode(codec.encode(torch.tensor([float("nan"), float("inf")])), 2)
    assert bool(decoded[0].isnan())
    assert bool(decoded[1].isinf())


def test_golden_bytes() -> None:
    values = torch.tensor([1.0, -2.5])
    assert CODECS["fp32"].encode(values).hex() == "0000803f000020c0"
    assert CODECS["bf16"].encode(values).hex() == "803f20c0"
