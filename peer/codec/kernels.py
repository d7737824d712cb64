"""The codecs in C (`native/`), with the codecs in torch as the reference and fallback.

The implementation is chosen once, on import: `avx2` where the processor has it, else `scalar`. Torch is used when the
kernels were not built, because there was no compiler at installation, and for tensors that are not on the CPU. The
environment variable `PEER_KERNELS` (avx2, scalar or torch) overrides the choice. All implementations give identical
bytes and identical floats."""

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
"""Advice for users of an installation without kernels."""
KINDS = {"int8": 0, "int4": 1, "e3m0": 2, "fp32": 3, "bf16": 4, "topk": 5}
"""Codec name -> number of the codec in native/module.c."""
REFUSALS = {
    1: (Code.SCALE, "a scale is negative, NaN or infinite"),
    2: (Code.CODE, "a code that this codec does not use"),
    3: (Code.INDEX, "the indices of a chunk do not ascend"),
}
"""Error code that a kernel returns for a payload -> code and reason of the BadPayload that is raised."""


class Native:
    """A codec implemented by a C kernel (contract: `Codec`). Tensors that a kernel cannot handle (not on the CPU, not
    fp32, not contiguous) are passed to the torch codec."""

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
    """Return the implementation to use and the reason. `wish`: the value of `PEER_KERNELS`, or "best".

    Raises UsageError for an implementation that this machine lacks."""
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
"""The implementation in use (avx2, scalar or torch), and the reason for the choice."""
TILES_AT_ONCE = 2 if IMPLEMENTATION == "torch" else 8
"""Tiles encoded in one call. A call then takes about a millisecond, and up to ten with some torch codecs, so that other
threads wait only briefly."""


def fastest(reference: Codec) -> Codec:
    """Return the fastest implementation of this codec on this machine."""
    return reference if IMPLEMENTATION == "torch" or reference.name not in KINDS else Native(reference)


def kernels() -> Any:
    """Return the C module, or None if it was not built. For tests and benchmarks."""
    return _native
