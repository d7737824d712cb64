"""Payloads that are read slice by slice equal, bit for bit, a copy of the whole."""

from __future__ import annotations

import pytest
import torch

from peer.codec.plain import TILE
from peer.codec.registry import EVERY
from peer.codec.stream import Encoding, Flat
from peer.exchange.payloads import Concatenated, PseudoGradient, ScaledParams, TensorSlice, work_of
from peer.exchange.validation import finite
from peer.outer.arithmetic import pseudo_gradient_, scale_work_

ELEMENTS = TILE + 333
GRAINS = 12_345


def normal(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))


def scaled(share: float) -> torch.Tensor:
    values = normal(0).clone()
    scale_work_(values, normal(1), share)
    return values


def read(codec: str, values: Flat) -> bytes:
    source = Encoding(EVERY[codec], values)
    return b"".join(source.read(at, min(GRAINS, source.nbytes - at)) for at in range(0, source.nbytes, GRAINS))


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_work_of_which_a_share_counts(codec: str, share: float) -> None:
    params, outer = normal(0), normal(1)
    assert read(codec, work_of(params, outer, share)) == EVERY[codec].encode(scaled(share))
    assert torch.equal(params, normal(0)), "a solo step may yet need it"
    assert torch.equal(outer, normal(1))


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_params_and_outer_params_as_one(codec: str, share: float) -> None:
    """The border between params and outer params is inside a tile, and inside a block of the codec."""
    joined = Concatenated(work_of(normal(0), normal(1), share), normal(1))
    whole = torch.cat([scaled(share), normal(1)])
    assert joined.numel() == whole.numel()
    assert read(codec, joined) == EVERY[codec].encode(whole)
    for part in (slice(0, ELEMENTS), slice(ELEMENTS - 5, ELEMENTS + 5), slice(ELEMENTS, 2 * ELEMENTS), slice(3, 3)):
        assert torch.equal(joined[part], whole[part])


def test_without_a_share_nothing_is_copied() -> None:
    params = normal(0)
    assert work_of(params, normal(1), 1.0) is params


@pytest.mark.parametrize("at", [0, TILE, ELEMENTS - 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_not_finite_is_found(at: int, value: float) -> None:
    params = normal(0)
    assert finite(params)
    assert finite(ScaledParams(params, normal(1), 0.5))
    params[at] = value
    assert not finite(params)
    assert not finite(ScaledParams(params, normal(1), 0.5))


def test_no_values_are_finite() -> None:
    assert finite(torch.empty(0))


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_a_pseudo_gradient_and_a_shard_of_it(codec: str, share: float) -> None:
    params, outer, shard = normal(0), normal(1), slice(128, ELEMENTS - 200)
    gradient, whole = PseudoGradient(params, outer, share), pseudo_gradient_(normal(0), normal(1), share)
    assert read(codec, gradient) == EVERY[codec].encode(whole)
    section = TensorSlice(gradient, shard.start, shard.stop)
    assert read(codec, section) == EVERY[codec].encode(whole[shard])
    assert torch.equal(section[section.numel() - 5 :], whole[shard][-5:]), "nothing behind the shard"
    assert torch.equal(params, normal(0))
    assert torch.equal(outer, normal(1))
