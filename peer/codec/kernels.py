"""The codecs in C (`native/`), where this machine has them, in front of those in torch, which define the result.

The implementation is chosen once, on import: the best that the processor has. Torch is chosen without a compiler at
installation time, on another processor, or for tensors on a GPU. `PEER_KERNELS` = avx2, scalar or torch overrides the
choice. All give the same bytes and the same floats, bit for bit."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import Tensor

from peer.codec.plain import Codec, Payload
from peer.codes import Code
from peer.errors import BadPayload, UsageError

try:
    _native: Any = importlib.import_module("peer.codec._kernels")
except ImportError:
    _native = None

REBUILD = "Install a wheel that has them, or a C compiler and then this program again (peer help install which-kernels)"
"""What brings the kernels."""
KINDS = {"int8": 0, "int4": 1, "e3m0": 2, "fp32": 3, "bf16": 4, "topk": 5}
"""Numbers of the codecs, as in native/module.c."""
REFUSALS = {
    1: (Code.SCALE, "a scale is negative, NaN or infinite"),
    2: (Code.CODE, "a code that this codec does not use"),
    3: (Code.INDEX, "the indices of a chunk do not ascend"),
}
"""Verdicts of a kernel on a payload."""


class Native:
    """A codec by a kernel (contract: Codec). It passes tensors that a kernel cannot take to the codec in torch."""

    def __init__(self, reference: Codec) -> None:
        self.name = reference.name
        self.nbytes = reference.nbytes
        self._reference_codec = reference
        self._kind = KINDS[reference.name]

    def encode(self, values: Tensor) -> bytes:
        if not _is_supported(values):
            return self._reference_codec.encode(values)
        payload: bytes | None = _native.encode(self._kind, values.numpy())
        assert payload is not None, f"{self.name}: values that are not finite cannot be sent"
        return payload

    def decode(self, payload: Payload, elements: int) -> Tensor:
        values = torch.empty(elements)
        self.decode_into(payload, values)
        return values

    def decode_into(self, payload: Payload, into: Tensor) -> None:
        if not _is_supported(into):
            return self._reference_codec.decode_into(payload, into)
        self._check_length(payload, into.numel())
        return self._raise_refusal(_native.decode(self._kind, payload, into.numpy()))

    def add(self, payload: Payload, into: Tensor, weight: float) -> None:
        if not _is_supported(into):
            return self._reference_codec.add(payload, into, weight)
        self._check_length(payload, into.numel())
        return self._raise_refusal(_native.add(self._kind, payload, into.numpy(), weight))

    def _check_length(self, payload: Payload, elements: int) -> None:
        if len(payload) != self.nbytes(elements):
            raise BadPayload(Code.LENGTH, f"{self.name}: {len(payload)} bytes for {elements} elements")

    def _raise_refusal(self, verdict: int) -> None:
        if verdict:
            code, reason = REFUSALS[verdict]
            raise BadPayload(code, f"{self.name}: {reason}")


def _is_supported(values: Tensor) -> bool:
    return values.device.type == "cpu" and values.dtype == torch.float32 and values.is_contiguous()


def _choose(wish: str) -> tuple[str, str]:
    """Choose the implementation and say why. Raises UsageError for a `PEER_KERNELS` that this machine lacks."""
    if wish == "torch":
        return "torch", "PEER_KERNELS says so"
    if _native is None:
        if wish != "best":
            raise UsageError(f"PEER_KERNELS={wish}: the kernels were not built", f"{REBUILD}.")
        return "torch", f"slower: the kernels in C were not built, for there was no compiler. {REBUILD}"
    try:
        used = str(_native.use(wish))
    except ValueError as error:
        raise UsageError(f"PEER_KERNELS={wish}: {error}", "Known: best, avx2, scalar, torch.") from None
    if wish != "best":
        return used, "PEER_KERNELS says so"
    return used, "this processor has AVX2" if used == "avx2" else "this processor has no AVX2"


IMPLEMENTATION, REASON = _choose(os.environ.get("PEER_KERNELS", "best"))
"""avx2, scalar or torch, and why."""
TILES_AT_ONCE = 2 if IMPLEMENTATION == "torch" else 8
"""Tiles encoded in one call: about a millisecond, for some codecs in torch ten."""


def fastest(reference: Codec) -> Codec:
    """Return the codec as this machine runs it."""
    return reference if IMPLEMENTATION == "torch" or reference.name not in KINDS else Native(reference)


def kernels() -> Any:
    """Return the module in C, None if it was not built: for tests and benchmarks."""
    return _native
