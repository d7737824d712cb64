"""An owner's tile-by-tile reduction equals, bit for bit, a reduction of whole tensors."""

from __future__ import annotations

import math

import pytest
import torch

from peer.codec.plain import TILE
from peer.codec.registry import EVERY
from peer.codec.stream import Encoding
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.reduce import Contribution, Reduced, reduce_contributions
from peer.outer.robust_mean import WEIGHTS, norm, weighted_mean
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import BytesSource

ELEMENTS = 2 * TILE + 4096 + 77
TOKENS = {"a": 100, "b": 250, "c": 30, "d": 4000}


def normal(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))


def parts_of(codec: str, values: dict[str, torch.Tensor]) -> dict[PeerId, Contribution]:
    """Return contributions. The first one is the owner's own, which is encoded while it is read."""
    encoded = {name: BytesSource(EVERY[codec].encode(one)) for name, one in values.items()}
    parts = {PeerId(name): Contribution(TOKENS[name], payload) for name, payload in encoded.items()}
    return parts | {PeerId("a"): Contribution(TOKENS["a"], Encoding(EVERY[codec], values["a"]))}


def combined(
    codec: str, parts: dict[PeerId, Contribution], result: str = "fp16", lacking: str = "", weights: str = "tokens"
) -> Reduced:
    into = torch.full((ELEMENTS,), math.nan)
    terms = MeanTerms(codec=EVERY[codec], result_codec=EVERY[result], weigh=WEIGHTS[weights])
    return reduce_contributions(parts, terms, into, lambda peers: lacking, lambda peer, part: True)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16", "int8", "int4", "e3m0", "topk"])
@pytest.mark.parametrize("result", ["fp32", "int8"])
def test_the_mean_is_that_of_whole_payloads(codec: str, result: str) -> None:
    values = {name: normal(seed) for seed, name in enumerate(TOKENS)}
    parts = parts_of(codec, values)
    got = combined(codec, parts, result)
    whole = [EVERY[codec].decode(EVERY[codec].encode(one), ELEMENTS) for one in values.values()]
    assert got.payload == EVERY[result].encode(weighted_mean(whole, list(TOKENS.values())))
    assert got.named == tuple(TOKENS)
    assert not parts, "they are let go"


def test_equal_weights_ask_for_no_tokens() -> None:
    values = {name: normal(seed) for seed, name in enumerate(TOKENS)}
    got = combined("fp32", parts_of("fp32", values), "fp32", weights="equal")
    assert got.payload == EVERY["fp32"].encode(weighted_mean(list(values.values()), [1] * 4))


def test_wrong_ones_are_left_out_by_name() -> None:
    values = {name: normal(seed) for seed, name in enumerate(TOKENS)}
    values["b"][TILE + 5] = math.inf
    values["d"] *= 1e5
    got = combined("fp32", parts_of("fp32", values))
    assert got.named == ("a", "c")
    assert {peer: error.code for peer, error in got.bad.items()} == {"b": "not_finite", "d": "norm"}
    mean = weighted_mean([values["a"].clone(), values["c"].clone()], [TOKENS["a"], TOKENS["c"]])
    assert got.payload == EVERY["fp16"].encode(mean)


def test_a_far_longer_one_counts_for_little_more_than_the_usual() -> None:
    values = {name: normal(seed) for seed, name in enumerate(TOKENS)}
    usual = sorted(norm(values[name]) for name in "abc")[1]
    values["d"] *= 300
    got = combined("fp32", parts_of("fp32", values), "fp32")
    assert (got.named, got.bad) == (tuple(TOKENS), {})
    values["d"] *= 1.5 * usual / norm(values["d"])
    mean = weighted_mean(list(values.values()), list(TOKENS.values()))
    assert got.payload is not None
    assert torch.allclose(EVERY["fp32"].decode(got.payload, ELEMENTS), mean, atol=1e-4)


def test_bytes_that_no_encoder_writes_are_left_out() -> None:
    values = {name: normal(seed) for seed, name in enumerate(("a", "b"))}
    parts = parts_of("int4", values)
    bad = bytearray(EVERY["int4"].encode(values["b"]))
    bad[EVERY["int4"].nbytes(TILE) : EVERY["int4"].nbytes(TILE) + 4] = b"\xff" * 4
    parts[PeerId("b")] = Contribution(100, BytesSource(bad))
    got = combined("int4", parts)
    assert (got.named, got.bad[PeerId("b")].code) == (("a",), "scale")


def test_with_too_few_there_is_no_result() -> None:
    got = combined("fp32", parts_of("fp32", {"a": normal(0)}), lacking="one of three")
    assert (got.payload, got.lacking) == (None, "one of three")
