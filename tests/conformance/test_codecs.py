"""Conformance suite for every codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from peer.codec.blocks import BLOCK
from peer.codec.lattice.codec import Modulo, decode_request, encode_request
from peer.codec.plain import Codec, InTorch, Payload
from peer.codec.registry import CODECS, EVERY, REFERENCE
from peer.codec.topk import CHUNK, KEPT
from peer.errors import BadPayload

LOOKS = sorted(set(EVERY) - set(CODECS))
"""Codecs that check that values are finite. For the others the caller checks it."""
SIZES = [0, 1, 2, 3, 127, 128, 129, 255, 257, 4095, 4096, 4097, 100_003, 2**18 + 1]
HUGE = torch.finfo(torch.float32).max
ROUNDING = 2.0**-20
"""Relative error of a codec's few fp32 operations."""
SMALLEST = 2.0**-149


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread, because on a busy machine its threads wait for each other far longer than they
    work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class OfPartner(InTorch):
    """The lattice codec as a `Codec`: the receiver's own values are near the last ones sent, and it requests the blocks
    that they do not determine. Without a spread the steps are the finest."""

    def __init__(self, modulo: Modulo) -> None:
        self.name, self.nbytes = modulo.name, modulo.nbytes
        self._modulo = modulo

    def encode(self, values: Tensor) -> bytes:
        self._sent, self._payload = values.clone(), self._modulo.encode(values, 0.0)
        return self._payload

    def decode(self, payload: Payload, elements: int) -> Tensor:
        values, failed = self._modulo.decode(payload, self._sent[:elements] * (1 - 2.0**-8))
        answer = self._modulo.encode_blocks(self._sent, self._payload, decode_request(encode_request(failed), elements))
        self._modulo.decode_blocks_(values, payload, failed, answer)
        return values


MODULO = {codec.name: codec for codec in map(OfPartner, (Modulo(7), Modulo(4)))}


IN_TORCH = {f"{name} in torch": codec for name, codec in REFERENCE.items() if EVERY[name] is not codec}


@pytest.fixture(params=sorted([*EVERY, *MODULO, *IN_TORCH]))
def codec(request: pytest.FixtureRequest) -> Codec:
    return (EVERY | MODULO | IN_TORCH)[request.param]


def normal(elements: int, seed: int = 0) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def in_rows(values: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % width)).view(-1, width)


def scales(values: Tensor) -> Tensor:
    """Return for each element the largest magnitude of its block."""
    blocks = in_rows(values, BLOCK).abs()
    return blocks.amax(1, keepdim=True).expand_as(blocks).reshape(-1)[: len(values)]


def topk_bound(values: Tensor) -> Tensor:
    """Return the error bound of each element: its own magnitude if it was not sent, else half the range of those
    sent."""
    rows = in_rows(values, CHUNK).abs()
    sent = rows.topk(KEPT, dim=1).values
    least, most = sent[:, -1:], sent[:, :1]
    bound = torch.where(rows < least, rows, torch.where(rows > least, (most - least) / 2, least.maximum(most / 2)))
    return bound.reshape(-1)[: len(values)]


BOUNDS: dict[str, Callable[[Tensor], Tensor]] = {
    "fp32": torch.zeros_like,
    "bf16": lambda values: (values.abs() * 2.0**-8).clamp(min=2.0**-134),
    "fp16": lambda values: (values.abs() * 2.0**-11).maximum(values.abs() - 65504).clamp(min=2.0**-25),
    "int8": lambda values: scales(values) * (0.5 / 127 + ROUNDING) + SMALLEST,
    "int4": lambda values: scales(values) * (0.5 / 7 + ROUNDING) + SMALLEST,
    "e3m0": lambda values: (values.abs() / 3).maximum(scales(values) / 128) + scales(values) * ROUNDING + SMALLEST,
    "topk": lambda values: topk_bound(values) * (1 + ROUNDING) + values.abs() * ROUNDING + SMALLEST,
    "modulo7": lambda values: scales(values) * (0.5 / (127 * 2**7)) * (1 + 2.0**-6) + 2.0**-133,
    "modulo4": lambda values: scales(values) * (0.5 / (127 * 2**4)) * (1 + 2.0**-6) + 2.0**-133,
}
NBYTES: dict[str, Callable[[int], int]] = {
    "fp32": lambda n: 4 * n,
    "bf16": lambda n: 2 * n,
    "fp16": lambda n: 2 * n,
    "int8": lambda n: n + 4 * ((n + 127) // 128),
    "int4": lambda n: (n + 1) // 2 + 4 * ((n + 127) // 128),
    "e3m0": lambda n: (n + 1) // 2 + 4 * ((n + 127) // 128),
    "topk": lambda n: 120 * ((n + 4095) // 4096),
    "modulo7": lambda n: (7 * n + 7) // 8 + 4 * ((n + 127) // 128),
    "modulo4": lambda n: (n + 1) // 2 + 4 * ((n + 127) // 128),
}
LARGEST_L2 = {"fp32": 0.0, "bf16": 0.003, "fp16": 3e-4, "int8": 0.01, "int4": 0.14, "e3m0": 0.22, "topk": 0.96}
LARGEST_L2 |= {"modulo7": 1e-4, "modulo4": 6e-4}
"""Relative L2 error on normally distributed values."""


def round_trip(codec: Codec, values: Tensor) -> Tensor:
    before = values.clone()
    payload = codec.encode(values)
    assert torch.equal(values, before), "encode leaves its argument alone"
    assert len(payload) == codec.nbytes(len(values)) == NBYTES[codec.name](len(values))
    decoded = codec.decode(payload, len(values))
    assert decoded.dtype == torch.float32
    assert decoded.shape == values.shape
    return decoded


def check_bound(codec: Codec, values: Tensor) -> None:
    decoded = round_trip(codec, values)
    assert bool(decoded.isfinite().all())
    over = (decoded - values).abs() - BOUNDS[codec.name](values)
    assert len(values) == 0 or float(over.max()) <= 0


@pytest.mark.parametrize("elements", SIZES)
def test_within_the_bound_and_of_the_exact_size(codec: Codec, elements: int) -> None:
    check_bound(codec, normal(elements, elements))


def test_magnitudes_of_many_orders(codec: Codec) -> None:
    exponents = torch.randint(-60, 60, (10_000,), generator=torch.Generator().manual_seed(1))
    check_bound(codec, normal(10_000) * 2.0**exponents)


def test_large_fragment(codec: Codec) -> None:
    values = normal(2**16).repeat(2**8)
    decoded = round_trip(codec, values)
    assert torch.equal(decoded.view(2**8, -1), decoded[: 2**16].expand(2**8, -1)), "no tile differs from another"
    first = values[: 2**16]
    assert float((decoded[: 2**16] - first).norm() / first.norm()) <= LARGEST_L2[codec.name]


@pytest.mark.parametrize("elements", [1, 128, 5000])
def test_zeros_stay_zero(codec: Codec, elements: int) -> None:
    assert torch.equal(round_trip(codec, torch.zeros(elements)), torch.zeros(elements))


@pytest.mark.parametrize("largest", [2.0**-149, 2.0**-130, 1e-38, 1e38, 3.3e38])
def test_denormal_and_huge_values(codec: Codec, largest: float) -> None:
    check_bound(codec, normal(5000).clamp(-1, 1) * largest)


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"bf16"} | set(MODULO)))
def test_the_largest_number_does_not_become_infinite(name: str) -> None:
    check_bound((EVERY | MODULO)[name], torch.tensor([HUGE, -HUGE, 1.0, 0.0] * 1500))


def test_what_it_can_hold_survives_bit_for_bit() -> None:
    for codec in CODECS.values():
        values = torch.tensor([0.0, -0.0, 1.0, -2.0, 2.0**-126, -(2.0**127), 1e-40])
        once = codec.decode(codec.encode(values), len(values))
        twice = codec.decode(codec.encode(once), len(values))
        assert torch.equal(once, twice)
        assert torch.equal(torch.signbit(once), torch.signbit(values))


def test_deterministic(codec: Codec) -> None:
    values = normal(10_000, 5)
    values[::3] = 1.5
    assert codec.encode(values) == codec.encode(values.clone())


@pytest.mark.parametrize("elements", [0, 8, 5000])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_refused(codec: Codec, elements: int, change: int) -> None:
    payload = codec.encode(torch.ones(elements))
    wrong = payload[:change] if change < 0 else payload + b"\0"
    if wrong == payload:
        return
    with pytest.raises(BadPayload) as caught:
        codec.decode(wrong, elements)
    assert caught.value.code == "length"


def test_bytes_of_any_kind_are_taken_and_not_kept(codec: Codec) -> None:
    values = normal(300)
    payload = bytearray(codec.encode(values))
    decoded = codec.decode(memoryview(payload), 300)
    again = codec.decode(payload, 300)
    payload[:] = bytes(len(payload))
    assert torch.equal(decoded, again)
    assert bool(decoded.any())


@pytest.mark.parametrize("name", [*LOOKS, *MODULO])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_values_are_not_sent(name: str, bad: float) -> None:
    values = normal(5000)
    values[4321] = bad
    with pytest.raises(AssertionError, match="not finite"):
        (EVERY | MODULO)[name].encode(values)


@pytest.mark.parametrize("name", sorted(CODECS))
def test_not_finite_values_are_carried_and_not_hidden(name: str) -> None:
    decoded = CODECS[name].decode(CODECS[name].encode(torch.tensor([float("nan"), float("inf")])), 2)
    assert bool(decoded[0].isnan())
    assert bool(decoded[1].isinf())


@pytest.mark.parametrize("name", [*LOOKS, *MODULO])
def test_hostile_bytes_are_refused_or_finite(name: str) -> None:
    codec, random = (EVERY | MODULO)[name], torch.Generator().manual_seed(7)
    good, refused = codec.encode(normal(300)), 0
    for _ in range(200):
        payload = torch.frombuffer(bytearray(good), dtype=torch.uint8)
        place = torch.randint(0, len(payload), (1,), generator=random)
        payload[place] = torch.randint(0, 256, (1,), generator=random, dtype=torch.uint8)
        try:
            assert bool(codec.decode(payload.numpy().tobytes(), 300).isfinite().all())
        except BadPayload:
            refused += 1
    assert refused < 200
    with pytest.raises(BadPayload):
        codec.decode(b"\xff" * len(good), 300)


@pytest.mark.parametrize("name", ["int8", "int4", "e3m0", "topk"])
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_a_scale_that_cannot_be_is_refused(name: str, scale: float) -> None:
    payload = torch.tensor([scale]).numpy().tobytes() + EVERY[name].encode(normal(100))[4:]
    with pytest.raises(BadPayload) as caught:
        EVERY[name].decode(payload, 100)
    assert caught.value.code == "scale"


def test_golden_bytes() -> None:
    values = torch.tensor([1.0, -2.5])
    golden = {
        "fp32": "0000803f000020c0",
        "bf16": "803f20c0",
        "fp16": "003c00c1",
        "int8": "00002040" + "3381",
        "int4": "00002040" + "93",
        "e3m0": "00002040" + "f6",
    }
    assert {name: EVERY[name].encode(values).hex() for name in golden} == golden
