"""Payloads encoded and decoded in pieces equal those processed as a whole."""

from __future__ import annotations

import random

import pytest
import torch

from peer.codec.plain import TILE, Codec
from peer.codec.registry import EVERY
from peer.codec.stream import Adding, Decoding, Encoding
from peer.errors import BadPayload, PartnerLost


@pytest.fixture(params=sorted(EVERY))
def codec(request: pytest.FixtureRequest) -> Codec:
    return EVERY[request.param]


def normal(elements: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def cuts(nbytes: int, rng: random.Random, largest: int) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < nbytes:
        size = min(nbytes - at, rng.randint(1, largest))
        found.append((at, size))
        at += size
    return found


@pytest.mark.parametrize("elements", [1, 5000, TILE, 2 * TILE + 77])
@pytest.mark.parametrize("largest", [100_000, 3_000_000])
def test_in_pieces_as_whole(codec: Codec, elements: int, largest: int) -> None:
    rng, values = random.Random(elements + largest), normal(elements)
    whole = codec.encode(values)
    source, into, sums = Encoding(codec, values), torch.full((elements,), 7.0), normal(elements, 1)
    expected = sums.clone()
    sinks = [Decoding(codec, into), Adding(codec, sums, 0.25)]
    assert source.nbytes == sinks[0].nbytes == len(whole)
    for offset, size in cuts(len(whole), rng, largest):
        part = source.read(offset, size)
        assert part == whole[offset : offset + size]
        for sink in sinks:
            sink.write(offset, part)
    assert torch.equal(into, codec.decode(whole, elements))
    codec.add(whole, expected, 0.25)
    assert torch.equal(sums, expected)


def test_any_part_can_be_made_again(codec: Codec) -> None:
    values = normal(2 * TILE + 77)
    whole, source = codec.encode(values), Encoding(codec, values)
    for seed in range(20):
        offset = random.Random(seed).randrange(len(whole))
        assert source.read(offset, min(5000, len(whole) - offset)) == whole[offset : offset + 5000]


def test_nothing_comes_of_nothing(codec: Codec) -> None:
    source, sink = Encoding(codec, torch.empty(0)), Decoding(codec, torch.empty(0))
    assert source.nbytes == sink.nbytes == 0
    assert source.read(0, 0) == b""


def test_wrong_bytes_are_refused_where_they_are() -> None:
    codec, values = EVERY["int8"], normal(2 * TILE)
    payload = bytearray(codec.encode(values))
    payload[-1] = 0x80
    sink = Decoding(codec, torch.empty(2 * TILE))
    half = len(payload) // 2
    sink.write(0, bytes(payload[:half]))
    with pytest.raises(BadPayload, match="code"):
        sink.write(half, bytes(payload[half:]))


@pytest.mark.parametrize("offset", [1, 4096])
def test_out_of_order_is_a_mistake_of_ours(offset: int) -> None:
    with pytest.raises(AssertionError):
        Decoding(EVERY["int8"], torch.empty(TILE)).write(offset, b"\0" * 8)


def test_whole_grains_are_made_in_one_go_and_kept_by_nobody(codec: Codec) -> None:
    values = normal(5 * TILE + 77)
    whole, source = codec.encode(values), Encoding(codec, values)
    size = 2 * source.grain
    parts = [source.read(at, min(size, len(whole) - at)) for at in range(0, len(whole), size)]
    assert b"".join(parts) == whole
    assert source.read(len(whole), 0) == source.read(0, 0) == b""


def test_bytes_no_encoder_writes_are_refused_in_the_middle_too() -> None:
    codec = EVERY["int8"]
    payload = bytearray(codec.encode(normal(4 * TILE)))
    sink = Decoding(codec, torch.zeros(4 * TILE))
    tile = codec.nbytes(TILE)
    payload[2 * tile :] = b"\xff" * (2 * tile)
    sink.write(0, bytes(payload[: 2 * tile]))
    with pytest.raises(BadPayload):
        sink.write(2 * tile, bytes(payload[2 * tile :]))


def test_what_is_closed_reads_and_writes_nothing_more() -> None:
    codec, into = EVERY["bf16"], torch.full((2 * TILE,), 7.0)
    source, sink = Encoding(codec, normal(2 * TILE, 0)), Decoding(codec, into)
    first = source.read(0, 2 * TILE)
    sink.write(0, first)
    before = into.clone()
    source.close()
    sink.close()
    with pytest.raises(PartnerLost):
        source.read(0, 2 * TILE)
    with pytest.raises(PartnerLost):
        sink.write(2 * TILE, first)
    assert torch.equal(into, before)
