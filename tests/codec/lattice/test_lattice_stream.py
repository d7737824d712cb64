"""Lattice payloads encoded and decoded in pieces equal those processed as a whole."""

from __future__ import annotations

import random

import pytest
import torch

from peer.codec.blocks import BLOCK
from peer.codec.lattice.codec import HEAD_BYTES, Modulo, count_blocks
from peer.codec.lattice.stream import ModuloDecoding, ModuloEncoding
from peer.codec.plain import TILE
from peer.errors import BadPayload, PartnerLost

ELEMENTS = [0, 1, 129, TILE, 2 * TILE + 77]


def normal(elements: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def pieces(nbytes: int, seed: int, largest: int) -> list[tuple[int, int]]:
    found, at, rng = [], 0, random.Random(seed)
    while at < nbytes:
        found.append((at, min(nbytes - at, rng.randint(1, largest))))
        at += found[-1][1]
    return found


def encoding(codec: Modulo, values: torch.Tensor, spread: float) -> ModuloEncoding:
    spreads = torch.full((count_blocks(values.numel()),), spread)
    return ModuloEncoding(codec, values, codec.encode_heads(values, spreads))


def decoded(codec: Modulo, payload: bytes, own: torch.Tensor, seed: int) -> tuple[torch.Tensor, ModuloDecoding]:
    into = torch.full_like(own, 7.0)
    sink = ModuloDecoding(codec, own, into)
    assert sink.nbytes == len(payload)
    for at, size in pieces(len(payload), seed, 300_000):
        sink.write(at, payload[at : at + size])
    return into, sink


@pytest.mark.parametrize("bits", [6, 7])
@pytest.mark.parametrize("elements", ELEMENTS)
def test_the_payload_is_that_of_the_whole(elements: int, bits: int) -> None:
    codec, values = Modulo(bits), normal(elements)
    source = encoding(codec, values, 0.1)
    made = b"".join(source.read(at, size) for at, size in pieces(source.nbytes, elements, 300_000))
    assert made == codec.encode(values, 0.1)
    again = source.nbytes // 3
    assert source.read(again, source.nbytes - again) == made[again:], "any part can be made again"


@pytest.mark.parametrize("apart", [0.01, 0.5, 30.0])
@pytest.mark.parametrize("elements", ELEMENTS)
def test_what_is_decoded_is_that_of_the_whole(elements: int, apart: float) -> None:
    codec, sent = Modulo(7), normal(elements)
    own = sent + apart * normal(elements, 1)
    payload = codec.encode(sent, 0.1)
    values, failed = codec.decode(payload, own)
    into, sink = decoded(codec, payload, own, elements)
    assert torch.equal(into, values)
    assert torch.equal(sink.failed, failed)
    assert elements < TILE or bool(failed.any()) == (apart > 0.1)
    sink.complete(codec.encode_blocks(sent, payload, failed))
    codec.decode_blocks_(values, payload, failed, codec.encode_blocks(sent, payload, failed))
    assert torch.equal(into, values)


def test_the_heads_alone_answer_a_request() -> None:
    codec, sent = Modulo(7), normal(2 * TILE + 77)
    payload = codec.encode(sent, 0.1)
    wanted = torch.rand(count_blocks(len(sent)), generator=torch.Generator().manual_seed(0)) < 0.1
    heads = payload[: HEAD_BYTES * len(wanted)]
    assert codec.encode_blocks(sent, heads, wanted) == codec.encode_blocks(sent, payload, wanted)


def test_a_wrong_answer_is_refused() -> None:
    codec, sent = Modulo(7), normal(TILE + 1)
    payload = codec.encode(sent, 0.1)
    _, sink = decoded(codec, payload, sent + 30, 0)
    answer = bytearray(codec.encode_blocks(sent, payload, sink.failed))
    with pytest.raises(BadPayload, match="length"):
        sink.complete(answer[BLOCK:])
    answer[5] ^= 1
    with pytest.raises(BadPayload, match="check"):
        sink.complete(answer)


def test_a_step_that_cannot_be_is_refused_as_soon_as_the_heads_are_here() -> None:
    codec, own = Modulo(7), normal(TILE)
    payload = bytearray(codec.encode(own, 0.1))
    payload[1] |= 0x80  # a negative value
    sink = ModuloDecoding(codec, own, torch.empty(TILE))
    heads = HEAD_BYTES * count_blocks(TILE)
    sink.write(0, bytes(payload[: heads - 1]))
    with pytest.raises(BadPayload, match="scale"):
        sink.write(heads - 1, bytes(payload[heads - 1 : heads]))


def test_what_is_closed_reads_and_writes_nothing() -> None:
    codec, own, into = Modulo(7), normal(TILE), torch.full((TILE,), 7.0)
    source, sink = encoding(codec, own, 0.1), ModuloDecoding(codec, own, into)
    payload = source.read(0, source.nbytes)
    source.close()
    sink.close()
    with pytest.raises(PartnerLost):
        source.read(0, source.nbytes)
    with pytest.raises(PartnerLost):
        sink.write(0, payload)
    assert torch.equal(into, torch.full((TILE,), 7.0))
