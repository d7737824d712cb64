"""The radial-directional mean, computed tile by tile, against its equation in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from peer.codec.plain import TILE, Payload
from peer.codec.registry import EVERY
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.reduce import Reduced, reduce_contributions
from peer.protocol.group.shards import Shard
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import BytesSource

ELEMENTS = 2 * TILE + 4096 + 77
TENSORS = [(300, 1301), (1301, 1302), (5000, TILE + 9000), (TILE + 9000, 2 * TILE + 1001), (2 * TILE + 4000, ELEMENTS)]
"""Spans that cross the edges of tiles and blocks."""
OPPOSED, ABSENT, TINY = TENSORS[2], TENSORS[3], TENSORS[4]
COUNTS = [100, 170, 80, 120, 390]


def gradients(count: int) -> list[Tensor]:
    common = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(99))
    made = []
    for number in range(count):
        one = common + torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(number))
        one[slice(*OPPOSED)] = common[slice(*OPPOSED)] * (-1.0) ** number
        made.append(one)
    made[1][slice(*ABSENT)] = 0.0
    made[2][slice(*TINY)] *= 1e-36
    return made


def reduced(codec: str, parts: list[Tensor], result: str = "fp32") -> Reduced:
    coded = [BytesSource(EVERY[codec].encode(part)) for part in parts]
    sent = {
        PeerId(str(number)): Contribution(tokens, payload)
        for number, (tokens, payload) in enumerate(zip(COUNTS, coded, strict=False))
    }
    terms, into = MeanTerms(codec=EVERY[codec], result_codec=EVERY[result]), torch.full((ELEMENTS,), math.nan)
    got = reduce_contributions(sent, terms, into, lambda peers: "", lambda peer, part: True, TENSORS)
    assert not sent, "they are let go"
    return got


def exact(parts: list[Tensor]) -> Tensor:
    stacked = torch.stack(parts).double()
    counts = torch.tensor([min(count, 240) for count in COUNTS[: len(parts)]], dtype=torch.float64)
    weights = (counts / counts.sum())[:, None]
    lengths = stacked.norm(dim=1)
    stacked *= (1.5 * lengths.sort().values[(len(parts) - 1) // 2] / lengths).clamp(max=1.0)[:, None]
    mean = (weights * stacked).sum(0)
    for start, end in TENSORS if len(parts) >= 4 else []:
        within = stacked[:, start:end]
        lengths = within.norm(dim=1, keepdim=True)
        u = (weights * torch.where(lengths > 1e-30, within / lengths, 0.0)).sum(0)
        if (start, end) != OPPOSED:
            mean[start:end] = (weights * lengths).sum() * u / u.norm()
    return mean


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16", "int8", "int4", "e3m0"])
def test_the_mean_of_decoded_parts(codec: str) -> None:
    parts = gradients(5)
    got = reduced(codec, parts)
    assert got.payload is not None
    assert got.named == tuple("01234")
    mean = exact([EVERY[codec].decode(EVERY[codec].encode(part), ELEMENTS) for part in parts])
    off = (EVERY["fp32"].decode(got.payload, ELEMENTS).double() - mean).abs()
    for start, end in TENSORS:
        assert float(off[start:end].max()) < 1e-6 * float(mean[start:end].abs().max())
    assert float(off.max()) < 1e-6 * float(mean.abs().max())


def test_the_directions_that_cancel_have_the_weighted_mean() -> None:
    parts = gradients(5)
    got = reduced("fp32", parts)
    assert got.payload is not None
    mean = EVERY["fp32"].decode(got.payload, ELEMENTS)
    usual = float(parts[0][slice(*OPPOSED)].norm())
    assert float(mean[slice(*OPPOSED)].norm()) < 0.3 * usual
    assert float(mean[slice(*TENSORS[0])].norm()) == pytest.approx(float(parts[0][slice(*TENSORS[0])].norm()), rel=0.1)


def test_among_three_it_is_the_weighted_mean() -> None:
    parts = gradients(3)
    terms, into = MeanTerms(codec=EVERY["fp32"], result_codec=EVERY["fp32"]), torch.empty(ELEMENTS)
    sent = {
        PeerId(str(number)): Contribution(COUNTS[number], BytesSource(EVERY["fp32"].encode(part)))
        for number, part in enumerate(parts)
    }
    plain = reduce_contributions(sent, terms, into, lambda peers: "", lambda peer, part: True)
    assert reduced("fp32", parts).payload == plain.payload


def test_no_more_than_a_tile_is_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, decode_into, largest = EVERY["int4"], EVERY["int4"].decode_into, [0]

    def watched(payload: Payload, into: Tensor) -> None:
        largest[0] = max(largest[0], into.numel())
        decode_into(payload, into)

    monkeypatch.setattr(codec, "decode_into", watched)
    assert reduced("int4", gradients(5), "int8").payload is not None
    assert largest == [TILE]


def test_a_shards_tensors_are_those_within_it() -> None:
    spans = ((0, 10), (10, 30), (50, 60))
    terms = MeanTerms(codec=EVERY["fp32"], result_codec=EVERY["fp32"], tensors=((), spans))
    assert terms.tensors_in(1) == spans
    assert terms.tensors_of(1, Shard(0, 0, 30, PeerId("a"))) == [(0, 10), (10, 30)]
    assert terms.tensors_of(1, Shard(1, 30, 70, PeerId("a"))) == [(20, 30)]
    assert terms.tensors_of(0, Shard(0, 0, 70, PeerId("a"))) == []
    weighted = MeanTerms(codec=EVERY["fp32"], result_codec=EVERY["fp32"])
    assert weighted.tensors_of(0, Shard(0, 0, 70, PeerId("a"))) == []
