"""Codecs that keep one number an element: fp32 and bf16, little endian, in order."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from peer.errors import BadPayload


class Codec(Protocol):
    """Tensors to bytes and back. `encode` takes a flat fp32 tensor of finite values; `decode` checks the length and
    raises BadPayload when it is wrong; it does not look at the values."""

    name: str

    def nbytes(self, elements: int) -> int: ...

    def encode(self, values: Tensor) -> bytes: ...

    def decode(self, payload: bytes | bytearray | memoryview, elements: int) -> Tensor: ...


class Plain:
    """A plain cast to `dtype` and back."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def nbytes(self, elements: int) -> int:
        return elements * self._dtype.itemsize

    def encode(self, values: Tensor) -> bytes:
        return values.to(self._dtype).contiguous().view(torch.uint8).numpy().tobytes()

    def decode(self, payload: bytes | bytearray | memoryview, elements: int) -> Tensor:
        """A fresh fp32 tensor; the payload is not kept."""
        if len(payload) != self.nbytes(elements):
            raise BadPayload("length", f"{self.name}: {len(payload)} bytes for {elements} elements")
        if elements == 0:
            return torch.empty(0)
        raw = torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())
        return raw.view(self._dtype).to(torch.float32)


FP32 = Plain("fp32", torch.float32)
BF16 = Plain("bf16", torch.bfloat16)
CODECS: dict[str, Codec] = {codec.name: codec for codec in (FP32, BF16)}
