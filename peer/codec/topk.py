"""The top-k codec: sends the 64 largest of every 4096 elements with 2 bits each. All others decode to zero.

A chunk of 4096 elements takes 120 bytes: two levels (fp32), 64 indices of 12 bits in ascending order, and 64 codes of 2
bits. Bit 1 of a code is the sign. Bit 0 is set if the magnitude is in the upper half of the range of the chunk's 64
magnitudes. The two levels are the mean magnitudes of the lower and of the upper half. The last chunk is padded with
zeros.

The codec is meant for updates, combined with `peer.codec.error_feedback`: without it, most of an update would be
lost."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from peer.codec.blocks import check_scales
from peer.codec.plain import TILE, InTorch, Payload, finite, from_bytes, to_bytes
from peer.codes import Code
from peer.errors import BadPayload

CHUNK = 4096
"""Elements of a chunk."""
KEPT = 64
"""Elements sent of a chunk."""
LEVEL_BYTES = 8
INDEX_BYTES = KEPT * 12 // 8
CHUNK_BYTES = LEVEL_BYTES + INDEX_BYTES + KEPT * 2 // 8
SHIFTS = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)


class TopK(InTorch):
    """The top-k codec (contract: `Codec`). Of two equal magnitudes, the earlier element is sent. A magnitude exactly in
    the middle counts as lower half. The error of a sent element is at most half the range of the magnitudes sent in its
    chunk."""

    name = "topk"

    def nbytes(self, elements: int) -> int:
        return CHUNK_BYTES * -(-elements // CHUNK)

    def encode(self, values: Tensor) -> bytes:
        assert finite(values), "topk: values that are not finite cannot be sent"
        return b"".join(_encode_tile(values[start : start + TILE]) for start in range(0, values.numel(), TILE))

    def decode(self, payload: Payload, elements: int) -> Tensor:
        """Decode to a fresh fp32 tensor of finite values.

        Raises BadPayload: `length`; `scale` for a negative, NaN or infinite level; `index` for indices that do not
        ascend."""
        values = torch.zeros(elements)
        indices, signed = self._sent(payload, elements)
        values[indices] = signed
        return values

    def add(self, payload: Payload, into: Tensor, weight: float) -> None:
        """As in `Codec`. Elements that were not sent keep their value."""
        indices, signed = self._sent(payload, into.numel())
        into[indices] += signed * weight

    def _sent(self, payload: Payload, elements: int) -> tuple[Tensor, Tensor]:
        """Return the indices (int64, ascending) and the values of the elements sent."""
        chunks = from_bytes(self, payload, elements).view(-1, CHUNK_BYTES)
        levels = chunks[:, :LEVEL_BYTES].contiguous().view(torch.float32)
        check_scales(self.name, levels)
        indices = _split_indices(chunks[:, LEVEL_BYTES : LEVEL_BYTES + INDEX_BYTES])
        if bool((indices.diff(dim=1) <= 0).any()):
            raise BadPayload(Code.INDEX, "topk: the indices of a chunk do not ascend")
        codes = _split_codes(chunks[:, LEVEL_BYTES + INDEX_BYTES :])
        magnitudes = levels.gather(1, (codes & 1).to(torch.int64))
        signed = torch.where(codes > 1, -magnitudes, magnitudes)
        indices = (indices + CHUNK * torch.arange(len(chunks)).unsqueeze(1)).view(-1)
        inside = indices < elements
        return indices[inside], signed.view(-1)[inside]


def _encode_tile(values: Tensor) -> bytes:
    chunks = pad(values, (0, -len(values) % CHUNK)).view(-1, CHUNK)
    indices = _largest(chunks)
    sent = chunks.gather(1, indices)
    levels, upper = _two_levels(sent.abs().to(torch.float64))
    codes = upper.to(torch.uint8) | ((sent < 0).to(torch.uint8) << 1)
    parts = [levels.view(torch.uint8), _join_indices(indices), _join_codes(codes)]
    return to_bytes(torch.cat(parts, 1))


def _largest(chunks: Tensor) -> Tensor:
    """Return the indices (int64, rows x 64, ascending) of the largest magnitudes of each row.

    The sort key contains the index, so no two keys are equal and the result is the same for every sorting algorithm."""
    magnitudes = chunks.abs().view(torch.int32).to(torch.int64)
    keys = (magnitudes << 12) | torch.arange(CHUNK - 1, -1, -1)
    return keys.topk(KEPT, dim=1, sorted=False).indices.sort(1).values


def _two_levels(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean magnitudes of the lower and the upper half (fp32, rows x 2), and a mask of the upper half.

    `magnitudes` is fp64, so that sums of the largest fp32 do not overflow."""
    low, high = magnitudes.aminmax(dim=1, keepdim=True)
    upper = magnitudes > (low + high) / 2
    means = [_sum(magnitudes * half) / half.sum(1).clamp(min=1) for half in (~upper, upper)]
    return torch.stack(means, 1).to(torch.float32), upper


def _sum(rows: Tensor) -> Tensor:
    """Sum each row by repeatedly adding its second half to its first. The fixed order gives the same last bit on every
    machine, so that equal values give equal bytes."""
    while rows.shape[1] > 1:
        first, second = rows.chunk(2, dim=1)
        rows = first + second
    return rows.squeeze(1)


def _join_indices(indices: Tensor) -> Tensor:
    """Pack two 12-bit numbers into three bytes, low bits first."""
    first, second = indices[:, ::2], indices[:, 1::2]
    parts = [first & 255, (first >> 8) | ((second & 15) << 4), second >> 4]
    return torch.stack(parts, 2).to(torch.uint8).flatten(1)


def _split_indices(packed: Tensor) -> Tensor:
    low, middle, high = packed.to(torch.int64).reshape(len(packed), KEPT // 2, 3).unbind(2)
    return torch.stack([low | ((middle & 15) << 8), (middle >> 4) | (high << 4)], 2).flatten(1)


def _join_codes(codes: Tensor) -> Tensor:
    """Pack four 2-bit codes into a byte, the first in the low bits."""
    return (codes.view(len(codes), -1, 4) << SHIFTS).sum(2, dtype=torch.uint8)


def _split_codes(packed: Tensor) -> Tensor:
    return ((packed.unsqueeze(2) >> SHIFTS) & 3).flatten(1)


TOPK = TopK()
