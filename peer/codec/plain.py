"""Codecs that keep one number an element: fp32, bf16 and fp16, little endian, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from peer.codes import Code
from peer.errors import BadPayload

Payload = bytes | bytearray | memoryview
TILE = 2**18
"""Elements worked on at a time: temporaries stay small, and the payload of a tile stands for itself."""


class Measured(Protocol):
    """A codec whose payload length is known from the number of elements."""

    name: str

    def nbytes(self, elements: int) -> int: ...


class Codec(Protocol):
    """Tensors to bytes and back, without state.

    `nbytes`: the exact length of the payload of so many elements.
    `encode`: takes a flat fp32 tensor of finite values (an invariant of the sender: asserted, except by fp32 and bf16,
    whose user has just looked). The same values always give the same bytes.
    `decode`: a fresh flat fp32 tensor; the payload is not kept. Raises BadPayload when the length is wrong, and when
    bytes are none that `encode` can write. Only fp32 and bf16 let NaN and infinity through: their user looks.
    `add`: into (flat fp32) += weight * what `decode` gives, product and sum rounded one by one, so that it gives the
    same floats on every machine. `decode_into`: the same without the sum. Both raise as `decode` does; `into` is then
    worth nothing.

    Payloads of TILE elements and what is left, one after the other, are the payload of the whole."""

    name: str

    def nbytes(self, elements: int) -> int: ...

    def encode(self, values: Tensor) -> bytes: ...

    def decode(self, payload: Payload, elements: int) -> Tensor: ...

    def decode_into(self, payload: Payload, into: Tensor) -> None: ...

    def add(self, payload: Payload, into: Tensor, weight: float) -> None: ...


class InTorch(ABC):
    """The operations that follow from `decode`."""

    @abstractmethod
    def decode(self, payload: Payload, elements: int) -> Tensor: ...

    def decode_into(self, payload: Payload, into: Tensor) -> None:
        into.copy_(self.decode(payload, into.numel()))

    def add(self, payload: Payload, into: Tensor, weight: float) -> None:
        into.add_(self.decode(payload, into.numel()).mul_(weight))


class Plain(InTorch):
    """A cast to `dtype` and back, to nearest, ties to even."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def nbytes(self, elements: int) -> int:
        return elements * self._dtype.itemsize

    def encode(self, values: Tensor) -> bytes:
        return to_bytes(values.to(self._dtype))

    def decode(self, payload: Payload, elements: int) -> Tensor:
        """Decode to a fresh fp32 tensor. The payload is not kept."""
        return self._sent(payload, elements).to(torch.float32)

    def decode_into(self, payload: Payload, into: Tensor) -> None:
        into.copy_(self._sent(payload, into.numel()))

    def _sent(self, payload: Payload, elements: int) -> Tensor:
        """Return a copy of the numbers in the type that is sent."""
        return from_bytes(self, payload, elements).view(self._dtype)


class Saturating(Plain):
    """A cast to a `dtype` of small range: what is beyond its largest number becomes that number, never infinity."""

    def encode(self, values: Tensor) -> bytes:
        assert finite(values), f"{self.name}: values that are not finite cannot be sent"
        largest = torch.finfo(self._dtype).max
        return super().encode(values.clamp(-largest, largest))

    def _sent(self, payload: Payload, elements: int) -> Tensor:
        """Return a copy, saturated. Raises BadPayload `not_finite` for NaN and infinity, too."""
        values = super()._sent(payload, elements)
        if not finite(values):
            raise BadPayload(Code.NOT_FINITE, f"{self.name}: the payload holds NaN or infinity")
        return values


def finite(values: Tensor) -> bool:
    """Whether no element is NaN or infinite. Makes no temporary."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(low.isfinite()) and bool(high.isfinite())


def to_bytes(values: Tensor) -> bytes:
    """Return the bytes of a flat tensor of any dtype."""
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(codec: Measured, payload: Payload, elements: int) -> Tensor:
    """Return a copy of the payload as a flat uint8 tensor. Raises BadPayload unless it is as long as the codec says."""
    if len(payload) != codec.nbytes(elements):
        raise BadPayload(Code.LENGTH, f"{codec.name}: {len(payload)} bytes for {elements} elements")
    if len(payload) == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())


FP32 = Plain("fp32", torch.float32)
BF16 = Plain("bf16", torch.bfloat16)
FP16 = Saturating("fp16", torch.float16)
