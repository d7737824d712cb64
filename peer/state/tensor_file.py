"""Write tensors as a safetensors file that is hashed on its way to the disk: no copy of them, and no second read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from blake3 import blake3

from peer.whole_files import write_all

_CHUNK = 2**22
_ALIGN = 8


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int]:
    """Write flat fp32 tensors on the CPU into a new file, which is on the disk when this returns.

    Return (BLAKE3 in hex, bytes). Raises OSError."""
    header, hasher = _header(tensors), blake3()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write(descriptor, memoryview(header), hasher)
        for tensor in tensors.values():
            _write(descriptor, tensor.numpy().data.cast("B"), hasher)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return hasher.hexdigest(), len(header) + sum(tensor.nbytes for tensor in tensors.values())


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Make the beginning of the file: the length of a JSON text, and the text, padded with blanks."""
    described, at = {}, 0
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32, tensor.dtype
        assert tensor.shape == (tensor.numel(),), tensor.shape
        described[name] = {"dtype": "F32", "shape": [tensor.numel()], "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _write(descriptor: int, data: memoryview, hasher: blake3) -> None:
    """Write and hash all of it, part by part: both release the interpreter meanwhile."""
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK]
        hasher.update(part)
        write_all(descriptor, part)
