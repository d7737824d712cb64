"""The codecs in C give the same bytes and floats as those in torch, for every set of kernels that this machine
supports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from peer.codec import kernels
from peer.codec.kernels import KINDS, Native
from peer.codec.plain import TILE, Codec
from peer.codec.registry import REFERENCE
from peer.errors import BadPayload, UsageError

NATIVE = kernels.kernels()
SIZES = [0, 1, 2, 7, 127, 128, 129, 255, 4095, 4096, 4097, 10_001, TILE - 1, TILE + 129]
WITHOUT = NATIVE is None and not any(map(shutil.which, ("cc", "gcc", "clang")))
pytestmark = pytest.mark.skipif(WITHOUT, reason="no compiler, no kernels; with one, none is a failure")


def sets() -> list[str]:
    names = ["scalar"]
    try:
        names += ["avx2"] if NATIVE is not None and NATIVE.use("avx2") else []
    except ValueError:
        return names
    return names


@pytest.fixture(params=sets(), autouse=True)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    NATIVE.use(request.param)
    yield
    NATIVE.use("best")
    torch.set_num_threads(threads)


@pytest.fixture(params=sorted(KINDS))
def pair(request: pytest.FixtureRequest) -> tuple[Codec, Codec]:
    return Native(REFERENCE[request.param]), REFERENCE[request.param]


def normal(elements: int, seed: int = 0) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def values_of(elements: int) -> list[Tensor]:
    """Return ordinary values, values of many orders of magnitude and near the largest fp32, zeros of both signs, and
    ties with their neighbours."""
    exponents = torch.randint(-80, 60, (elements,), generator=torch.Generator().manual_seed(elements))
    steps = torch.arange(elements) % 509 - 254
    ties = [steps / 254, steps.sign() * 1.5 * 2.0 ** -(steps.abs() % 11), steps.sign() * 2.0 ** -(steps.abs() % 13)]
    ties = [tie.to(torch.float32).clamp(-1, 1) for tie in ties]  # of a scale that is 1
    ties += [tie.nextafter(torch.tensor(beside)) for tie in ties for beside in (-1.0, 1.0)]
    ones = [torch.where(torch.arange(elements) % 128 == 0, 1.0, tie) for tie in ties]
    return [
        normal(elements),
        normal(elements, 1) * 2.0**exponents,
        normal(elements, 2) * 2.0**-140,
        normal(elements, 3).clamp(-1, 1) * torch.finfo(torch.float32).max,
        -torch.zeros(elements),
        *ones,
    ]


def bits(values: Tensor) -> list[int]:
    return values.view(torch.int32).tolist()  # type: ignore[no-any-return]


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize("elements", SIZES)
def test_same_bytes_and_same_floats(pair: tuple[Codec, Codec], elements: int) -> None:
    native, reference = pair
    for values in values_of(elements):
        payload = reference.encode(values)
        assert native.encode(values) == payload
        assert same(native.decode(payload, elements), reference.decode(payload, elements))


@pytest.mark.parametrize("weight", [1.0, 0.3, -2.5])
@pytest.mark.parametrize("elements", [1, 129, 4097, 10_001])
def test_same_sums(pair: tuple[Codec, Codec], elements: int, weight: float) -> None:
    native, reference = pair
    for number, values in enumerate(values_of(elements)):
        payload, one = reference.encode(values), normal(elements, number)
        one[::5] = -0.0
        other = one.clone()
        native.add(payload, one, weight)
        reference.add(payload, other, weight)
        assert same(one, other)


def verdict(codec: Codec, payload: bytes, elements: int) -> str | list[int]:
    try:
        return bits(codec.decode(payload, elements))
    except BadPayload as refusal:
        return refusal.code


@pytest.mark.parametrize("elements", [5, 300, 5000])
def test_same_verdict_on_hostile_bytes(pair: tuple[Codec, Codec], elements: int) -> None:
    native, reference = pair
    random, good = torch.Generator().manual_seed(elements), reference.encode(normal(elements))
    for _ in range(50):
        damaged = torch.frombuffer(bytearray(good), dtype=torch.uint8)
        places = torch.randint(0, len(damaged), (3,), generator=random)
        damaged[places] = torch.randint(0, 256, (3,), generator=random, dtype=torch.uint8)
        payload = damaged.numpy().tobytes()
        assert verdict(native, payload, elements) == verdict(reference, payload, elements)


def test_a_payload_need_not_be_aligned(pair: tuple[Codec, Codec]) -> None:
    native, reference = pair
    payload, into = reference.encode(normal(1000)), torch.zeros(1000)
    shifted = memoryview(b"\0" + payload)[1:]
    native.decode_into(shifted, into)
    assert same(into, reference.decode(payload, 1000))
    into.zero_()
    assert same(native.decode(shifted, 1000), reference.decode(payload, 1000))
    native.add(shifted, into, 1.0)
    assert torch.equal(into, reference.decode(payload, 1000))


POURED = 2**20
"""As native/kernels.h has it: from here on the kernels write past the caches."""


@pytest.mark.parametrize("shift", [0, 1, 8], ids=lambda shift: f"{4 * shift} bytes off")
def test_many_elements_are_decoded_alike_wherever_they_go(pair: tuple[Codec, Codec], shift: int) -> None:
    native, reference = pair
    elements = POURED + TILE + 77
    payload = reference.encode(normal(elements))
    room = torch.full((elements + 16,), 7.0)
    native.decode_into(payload, room[shift : shift + elements])
    assert same(room[shift : shift + elements], reference.decode(payload, elements))
    assert room[:shift].eq(7).all()
    assert room[shift + elements :].eq(7).all()


def test_many_hostile_bytes_are_refused_alike(pair: tuple[Codec, Codec]) -> None:
    native, reference = pair
    damaged = bytearray(reference.encode(normal(POURED)))
    damaged[-900:] = b"\xff" * 900
    damaged[:4] = b"\x80" * 4
    assert verdict(native, bytes(damaged), POURED) == verdict(reference, bytes(damaged), POURED)


def test_tiles_stand_for_themselves(pair: tuple[Codec, Codec]) -> None:
    native, _ = pair
    values = normal(2 * TILE + 500)
    assert native.encode(values) == b"".join(native.encode(tile) for tile in values.split(TILE))


def test_what_a_kernel_cannot_take_goes_to_torch(pair: tuple[Codec, Codec]) -> None:
    native, reference = pair
    strided = normal(600)[::2]
    assert native.encode(strided) == reference.encode(strided.contiguous())
    payload, into = native.encode(strided), torch.zeros(600)
    native.add(payload, into[::2], 2.0)
    assert torch.equal(into[::2], reference.decode(payload, 300) * 2)
    assert not into[1::2].any()


def test_lengths_are_checked_before_a_pointer_is_used() -> None:
    for kind in KINDS.values():
        with pytest.raises(ValueError, match="length"):
            NATIVE.decode(kind, b"\0" * 10, bytearray(4 * 1000))
    for wrong in (-1, 6, 2**31 - 1):
        with pytest.raises(ValueError, match="no such codec"):
            NATIVE.encode(wrong, b"\0" * 8)
    with pytest.raises(ValueError, match="not fp32"):
        NATIVE.encode(0, b"\0" * 7)
    with pytest.raises((TypeError, BufferError)):
        NATIVE.decode(3, b"\0" * 8, b"\0" * 8)  # read-only


def test_an_installation_without_a_compiler_says_that_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_native", None)
    used, reason = kernels._choose("best")
    assert used == "torch"
    assert "slower" in reason
    assert "peer help install which-kernels" in reason
    with pytest.raises(UsageError, match="PEER_KERNELS=avx2: the kernels were not built"):
        kernels._choose("avx2")
