"""The codec interface, and the codecs that cast each element: fp32, bf16 and fp16, little endian, in order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from peer.codes import Code
from peer.errors import BadPayload

Payload = bytes | bytearray | memoryview
TILE = 2**18
"""Elements encoded or decoded at a time, so that temporaries stay small. The payload of a tile depends on no other
tile."""


class Measured(Protocol):
    """A codec whose payload length follows from the number of elements."""

    name: str

    def nbytes(self, elements: int) -> int: ...


class Codec(Protocol):
    """Interface of all codecs: flat fp32 tensors to bytes and back, without state.

    `nbytes(elements)`: the exact length of a payload in bytes.

    `encode(values)`: `values` is flat fp32 and finite, which the caller guarantees. All codecs except fp32 and bf16
    assert it; the callers of these two have just checked it. Equal values always give equal bytes.

    `decode(payload, elements)`: return a fresh flat fp32 tensor; the payload is not kept. Raises BadPayload for a wrong
    length, and for bytes that `encode` never writes. Only fp32 and bf16 let NaN and infinity through; their callers
    check.

    `add(payload, into, weight)`: into (flat fp32) += weight * decoded values. Product and sum are rounded separately,
    so that all machines compute the same floats. `decode_into(payload, into)` overwrites instead. Both raise as
    `decode` does, and then leave `into` with unusable values.

    The payload of a long tensor is the concatenation of the payloads of its tiles of `TILE` elements."""

    name: str

    def nbytes(self, elements: int) -> int: ...

    def encode(self, values: Tensor) -> bytes: ...

    def decode(self, payload: Payload, elements: int) -> Tensor: ...

    def decode_into(self, payload: Payload, into: Tensor) -> None: ...

    def add(self, payload: Payload, into: Tensor, weight: float) -> None: ...


class InTorch(ABC):
    """Base of the torch codecs: implements `decode_into` and `add` by `decode`."""

    @abstractmethod
    def decode(self, payload: Payload, elements: int) -> Tensor: ...

    def decode_into(self, payload: Payload, into: Tensor) -> None:
        into.copy_(self.decode(payload, into.numel()))

    def add(self, payload: Payload, into: Tensor, weight: float) -> None:
        into.add_(self.decode(payload, into.numel()).mul_(weight))


class Plain(InTorch):
    """A codec that casts each element to `dtype` and back, rounding to nearest, ties to even."""

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
        """Return a copy of the payload as a tensor of the sent dtype."""
        return from_bytes(self, payload, elements).view(self._dtype)


class Saturating(Plain):
    """A codec that casts to a `dtype` of small range. Values beyond its largest number become that number instead of
    infinity."""

    def encode(self, values: Tensor) -> bytes:
        assert finite(values), f"{self.name}: values that are not finite cannot be sent"
        largest = torch.finfo(self._dtype).max
        return super().encode(values.clamp(-largest, largest))

    def _sent(self, payload: Payload, elements: int) -> Tensor:
        """Return a copy of the payload as a tensor of the sent dtype. Also raises BadPayload (`not_finite`) for NaN and
        infinity, which `encode` never writes."""
        values = super()._sent(payload, elements)
        if not finite(values):
            raise BadPayload(Code.NOT_FINITE, f"{self.name}: the payload holds NaN or infinity")
        return values


def finite(values: Tensor) -> bool:
    """Return whether no element is NaN or infinite. Allocates no temporary of the tensor's size."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)  # NaN if any element is
    return math.isfinite(low) and math.isfinite(high)


def to_bytes(values: Tensor) -> bytes:
    """Return the bytes of a flat tensor of any dtype."""
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(codec: Measured, payload: Payload, elements: int) -> Tensor:
    """Return a copy of the payload as a flat uint8 tensor. Raises BadPayload (`length`) unless the payload has the
    length that the codec gives for this number of elements."""
    if len(payload) != codec.nbytes(elements):
        raise BadPayload(Code.LENGTH, f"{codec.name}: {len(payload)} bytes for {elements} elements")
    if len(payload) == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())


FP32 = Plain("fp32", torch.float32)
BF16 = Plain("bf16", torch.bfloat16)
FP16 = Saturating("fp16", torch.float16)
