"""Codec for a sparse vector that several peers contributed to: a bit mask of the elements present, then their values as
int8.

Bit 0 of the first byte stands for element 0; the bits after the last element are zero. The values follow in order, as
the int8 codec encodes them, with one scale per 128 values. An absent element decodes to zero, and so does a present
element that int8 rounded to zero."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from peer.codec.plain import Payload
from peer.codec.registry import EVERY
from peer.codes import Code
from peer.errors import BadPayload

VALUES = EVERY["int8"]


def encode_joined(values: Tensor) -> bytes:
    """Encode a flat fp32 tensor of finite values. Elements that are zero are left out."""
    there = values != 0
    bits = np.packbits(there.numpy(), bitorder="little")
    return bits.tobytes() + VALUES.encode(values[there])


def decode_joined(payload: Payload, into: Tensor) -> None:
    """Decode into a flat fp32 tensor, which sets the number of elements.

    Raises BadPayload: `length`, `index` for a bit set after the last element, and the errors of int8."""
    elements, raw = into.numel(), memoryview(payload)
    nbytes = -(-elements // 8)
    if len(raw) < nbytes:
        raise BadPayload(Code.LENGTH, f"{len(raw)} bytes for the bits of {elements} elements")
    bits = np.unpackbits(np.frombuffer(raw[:nbytes], dtype=np.uint8), bitorder="little")
    if bits[elements:].any():
        raise BadPayload(Code.INDEX, "a bit is set behind the last element")
    there = torch.from_numpy(bits[:elements].view(np.bool_))
    values = VALUES.decode(raw[nbytes:], int(np.count_nonzero(bits)))
    into.zero_()
    into.masked_scatter_(there, values)
