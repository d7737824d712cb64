"""The top-k codec: the elements and magnitudes sent, and payloads that are rejected."""

from __future__ import annotations

import pytest
import torch

from peer.codec.topk import CHUNK, CHUNK_BYTES, KEPT, LEVEL_BYTES, TOPK
from peer.errors import BadPayload


def test_two_magnitudes_arrive_exactly_wherever_they_lie() -> None:
    values = torch.zeros(2 * CHUNK)
    for chunk in (0, CHUNK):
        places = chunk + torch.randperm(CHUNK, generator=torch.Generator().manual_seed(chunk))[:KEPT]
        values[places[:20]], values[places[20:40]] = 3.0, -3.0
        values[places[40:]] = -1.0
    assert torch.equal(TOPK.decode(TOPK.encode(values), len(values)), values)


def test_one_element_alone_arrives_exactly() -> None:
    values = torch.zeros(5000)
    values[4999] = -7.5
    assert torch.equal(TOPK.decode(TOPK.encode(values), 5000), values)


def test_of_equal_magnitudes_the_earlier_are_sent() -> None:
    decoded = TOPK.decode(TOPK.encode(torch.ones(CHUNK)), CHUNK)
    assert torch.equal(decoded, torch.cat([torch.ones(KEPT), torch.zeros(CHUNK - KEPT)]))


def test_the_largest_are_sent() -> None:
    values = torch.randn(CHUNK, generator=torch.Generator().manual_seed(3))
    sent = TOPK.decode(TOPK.encode(values), CHUNK).nonzero().flatten()
    assert sent.tolist() == sorted(values.abs().topk(KEPT).indices.tolist())


def test_an_index_that_comes_twice_is_refused() -> None:
    payload = bytearray(TOPK.encode(torch.ones(CHUNK)))
    assert len(payload) == CHUNK_BYTES
    payload[LEVEL_BYTES : LEVEL_BYTES + 3] = bytes(3)
    with pytest.raises(BadPayload) as caught:
        TOPK.decode(bytes(payload), CHUNK)
    assert caught.value.code == "index"
