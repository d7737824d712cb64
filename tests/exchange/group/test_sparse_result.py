"""The sparse result: its two forms, its bytes, and the results that a member refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from peer.codec.registry import EVERY, REFERENCE
from peer.errors import BadPayload
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.reduce import reduce_contributions
from peer.exchange.group.sparse_result import HEAD, SparseResult
from peer.methods.codec_specs import (
    FORMS,
    SPARSE,
    is_relayed,
    joined_nbytes,
    largest_result,
    relayed_nbytes,
    result_nbytes,
)
from peer.outer.robust_mean import weighted_mean
from peer.protocol.messages import PeerId
from tests.support.sparse_parts import TOPK, contribution, gradient, signed_by

ELEMENTS = 2**18 + 3 * 4096 + 77
RESULT = SparseResult(TOPK)


def made(count: int, elements: int = ELEMENTS, factor: float = 1.0) -> bytes:
    parts = [contribution(number, elements) for number in range(count)]
    counted = [(part, factor if number == 0 else 1.0) for number, part in enumerate(parts)]
    return bytes(RESULT.make(counted, torch.full((elements,), math.nan)))


def read(payload: bytes, count: int, elements: int = ELEMENTS, result: SparseResult = RESULT) -> Tensor:
    """Decode a result as a member does, with the check of its length first."""
    sink, into = result.sink(len(payload), elements, count), torch.full((elements,), math.nan)
    sink.write(0, payload)
    result.read(sink.data, count, into, signed_by(elements))
    return into


def mean(count: int, elements: int = ELEMENTS) -> Tensor:
    parts = [contribution(number, elements) for number in range(count)]
    values = [TOPK.decode(part.payload.read(0, part.payload.nbytes), elements) for part in parts]
    return weighted_mean(values, [part.tokens for part in parts])


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_relayed_parts_give_the_mean_to_the_bit(count: int) -> None:
    assert is_relayed(ELEMENTS, count)
    payload = made(count)
    assert len(payload) == relayed_nbytes(ELEMENTS, count) == result_nbytes(SPARSE, ELEMENTS, count)
    assert torch.equal(read(payload, count), mean(count))


@pytest.mark.parametrize("count", [9, 16])
def test_more_parts_are_joined_and_rounded_to_int8(count: int) -> None:
    assert not is_relayed(ELEMENTS, count)
    payload, exact = made(count), mean(count)
    got, there = read(payload, count), exact != 0
    assert len(payload) == joined_nbytes(ELEMENTS, int(there.sum())) <= largest_result(SPARSE, ELEMENTS, count)
    assert len(payload) == pytest.approx(result_nbytes(SPARSE, ELEMENTS, count), rel=0.02)
    codec = EVERY["int8"]
    assert torch.equal(got[there], codec.decode(codec.encode(exact[there]), int(there.sum())))
    assert float((got - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("count", [3, 12])
def test_machines_with_other_kernels_read_the_same_bits(count: int) -> None:
    payload = made(count)
    assert torch.equal(read(payload, count), read(payload, count, result=SparseResult(REFERENCE["topk"])))
    assert made(count) == payload, "the same parts, the same bytes"


@pytest.mark.parametrize(("peers", "most"), [(2, 0.71), (8, 2.12), (16, 3.08)])
def test_the_bits_of_a_parameter_contribution_and_result_together(peers: int, most: float) -> None:
    fragment = 10**8
    shard = fragment // peers
    both = FORMS["topk"].nbytes(fragment) + peers * result_nbytes(SPARSE, shard, peers)
    assert most - 0.05 < 8 * both / fragment < most


@pytest.mark.parametrize("elements", [1, 4096, 25_000, 10**6])
def test_the_form_is_the_smaller_one(elements: int) -> None:
    sizes = [result_nbytes(SPARSE, elements, parts) for parts in range(1, 65)]
    assert sizes == sorted(sizes)
    assert all(
        size <= relayed_nbytes(elements, parts) and largest_result(SPARSE, elements, parts) >= size
        for parts, size in enumerate(sizes, 1)
    )


def test_an_owner_leaves_out_whom_it_cannot_relay() -> None:
    elements = 10_000
    parts = {PeerId(str(number)): contribution(number, elements) for number in range(3)}
    parts[PeerId("1")] = Contribution(parts[PeerId("1")].tokens + 1, parts[PeerId("1")].payload, b"s" * 64)
    check = signed_by(elements)
    got = reduce_contributions(
        parts,
        MeanTerms(codec=TOPK, result_codec=RESULT),
        torch.empty(elements),
        lambda peers: "",
        lambda peer, part: check(int(peer), part),
    )
    assert (got.named, got.bad[PeerId("1")].code) == (("0", "2"), "signature")
    assert got.payload is not None
    assert len(got.payload) == relayed_nbytes(elements, 2)


def test_one_that_is_far_longer_counts_for_less() -> None:
    elements = 10_000
    got, whole = read(made(3, elements, factor=0.25), 3, elements), mean(3, elements)
    values = [TOPK.decode(TOPK.encode(gradient(number, elements)), elements) for number in range(3)]
    tokens = torch.tensor([float(contribution(number, elements).tokens) for number in range(3)])
    assert torch.allclose(whole - got, 0.75 * values[0] * tokens[0] / tokens.sum(), atol=1e-8)


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("nbytes", [1, 2**40, 2**64 - 1])
def test_nothing_is_allocated_for_a_length_that_cannot_be(count: int, nbytes: int) -> None:
    with pytest.raises(BadPayload) as caught:
        RESULT.sink(nbytes, ELEMENTS, count)
    assert caught.value.code == "length"


def test_a_result_of_nobody_is_refused() -> None:
    with pytest.raises(BadPayload) as caught:
        RESULT.sink(0, ELEMENTS, 0)
    assert caught.value.code == "named"


@pytest.mark.parametrize("change", [-1, 1])
def test_another_length_than_its_parts_is_refused(change: int) -> None:
    with pytest.raises(BadPayload) as caught:
        RESULT.sink(relayed_nbytes(ELEMENTS, 3) + change, ELEMENTS, 3)
    assert caught.value.code == "length"
    with pytest.raises(BadPayload) as caught:
        RESULT.sink(largest_result(SPARSE, ELEMENTS, 12) + 1, ELEMENTS, 12)
    assert caught.value.code == "length"


@pytest.mark.parametrize(
    ("tokens", "factor"),
    [(0, 1.0), (2**53, 1.0), (2**64 - 1, 1.0), (100, 0.0), (100, -1.0), (100, 1.5), (100, math.nan), (100, math.inf)],
)
def test_a_weight_that_cannot_be_is_refused(tokens: int, factor: float) -> None:
    payload = bytearray(made(2, 5000))
    signature = HEAD.unpack_from(payload)[2]
    HEAD.pack_into(payload, 0, tokens, factor, signature)
    with pytest.raises(BadPayload) as caught:
        read(bytes(payload), 2, 5000)
    assert caught.value.code == "weight"


@pytest.mark.parametrize("place", [0, 12, 2 * HEAD.size + 20, 2 * HEAD.size + 250])
def test_a_part_that_its_contributor_did_not_sign_is_refused(place: int) -> None:
    """Flips one bit of the tokens, of the signature, and of the first or second payload."""
    payload = bytearray(made(2, 5000))
    payload[place] ^= 1
    with pytest.raises(BadPayload) as caught:
        read(bytes(payload), 2, 5000)
    assert caught.value.code == "signature"


def test_parts_are_those_of_the_named() -> None:
    payload = made(2, 5000)
    size = TOPK.nbytes(5000)
    heads, bodies = payload[: 2 * HEAD.size], payload[2 * HEAD.size :]
    swapped = heads[HEAD.size :] + heads[: HEAD.size] + bodies[size:] + bodies[:size]
    with pytest.raises(BadPayload) as caught:
        read(swapped, 2, 5000)
    assert caught.value.code == "signature"


@pytest.mark.parametrize("count", [2, 12])
def test_hostile_results_are_refused_or_finite(count: int) -> None:
    """Every signature counts as valid, so that damaged bytes reach the decoders."""
    rng, good, elements, refused = torch.Generator().manual_seed(7), made(count, 60_000), 60_000, 0
    for _ in range(150):
        payload = bytearray(good)
        place, byte = (int(torch.randint(0, most, (1,), generator=rng)) for most in (len(good), 256))
        payload[place], into = byte, torch.empty(elements)
        try:
            RESULT.read(payload, count, into, lambda number, part: True)
            assert bool(into.isfinite().all())
        except BadPayload:
            refused += 1
    assert 0 < refused < 150
