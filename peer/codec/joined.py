"""The joined form of a sparse vector: a bit for each element that tells whether it is there, and int8 for those that
are. Element 0 is the lowest bit of the first byte. The bits behind the last element are zero.

The values are in the order of their elements, as the codec int8 has them: one scale for 128 of them. An element that is
not there is zero. So is one that is there and was rounded to zero."""

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
    """Encode the elements of a flat fp32 tensor of finite values that are not zero."""
    there = values != 0
    bits = np.packbits(there.numpy(), bitorder="little")
    return bits.tobytes() + VALUES.encode(values[there])


def decode_joined(payload: Payload, into: Tensor) -> None:
    """Decode into a flat fp32 tensor. Raises BadPayload: `index` for bits behind the last element, else as int8."""
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
