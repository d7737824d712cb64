"""Writes tensors as a safetensors file and hashes the bytes while writing, without a copy and without a second read."""

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
    """Write flat fp32 tensors on the CPU to a new file and sync it to disk.

    Returns (BLAKE3 digest in hex, length in bytes). Raises OSError, also if the file exists."""
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
    """Return the header of the file: the length of a JSON text, then the text, padded with blanks."""
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
    """Hash and write all of `data`, in parts. Both operations release the interpreter lock."""
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK]
        hasher.update(part)
        write_all(descriptor, part)
