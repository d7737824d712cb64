"""Block codecs int8, int4 and e3m0: a few bits per element, and one scale for every 128 elements.

The scale is the block's largest magnitude, as fp32. It is not divided by the number of levels, so that it neither
underflows in a block of denormals nor overflows near the largest fp32.

A payload is a sequence of tiles of 2**18 elements; each tile is its scales followed by its codes. Two 4-bit codes share
a byte, the earlier element in the low half. The last tile and its last block may be short. With an odd number of
elements, the unused half byte is zero and is ignored."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from peer.codec.plain import TILE, InTorch, Payload, finite, from_bytes, to_bytes
from peer.codes import Code
from peer.errors import BadPayload

BLOCK = 128
"""Elements that share a scale."""


def in_blocks(values: Tensor) -> Tensor:
    """Return flat values as rows of `BLOCK` elements: a view, or a copy padded with zeros if the last row is short."""
    missing = -values.numel() % BLOCK
    return (pad(values, (0, missing)) if missing else values).view(-1, BLOCK)


class Levels(Protocol):
    """The quantization levels of a block codec: maps ratios in [-1, 1] (fp32) to codes (uint8, below 2**bits) and back.
    Tensors have any shape."""

    bits: int

    def codes(self, ratios: Tensor) -> Tensor: ...

    def ratios(self, codes: Tensor) -> Tensor: ...


class Even:
    """2**bits - 1 evenly spaced levels. Codes are two's complement integers, rounded to nearest, ties to even. The
    error of an element is at most half a step: scale / (2**bits - 2)."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._top = 2 ** (bits - 1) - 1

    def codes(self, ratios: Tensor) -> Tensor:
        signed = (ratios * self._top).round().to(torch.int8)
        return torch.bitwise_and(signed.view(torch.uint8), 2**self.bits - 1)

    def ratios(self, codes: Tensor) -> Tensor:
        """Decode codes to ratios. Raises BadPayload for the one code whose ratio is below -1, because with a large
        scale its value would overflow to infinity."""
        unused = 8 - self.bits
        signed = codes.bitwise_left_shift(unused).view(torch.int8).bitwise_right_shift(unused)
        if bool((signed < -self._top).any()):
            raise BadPayload(Code.CODE, f"a code that {self.bits} bit integers do not use")
        return signed.to(torch.float32).div(self._top)


class Powers:
    """The levels of e3m0: a sign (bit 3) and a 3-bit exponent m. m = 0 means zero, m = 1..7 means 2**(m - 7). Rounding
    is to nearest on the linear scale, ties to the even code. The error of an element is at most a third of its
    magnitude, or scale / 128 if that is larger."""

    bits = 4

    def __init__(self) -> None:
        levels = torch.tensor([0.0, *(2.0 ** (m - 7) for m in range(1, 8))])
        middles = (levels[1:] + levels[:-1]) / 2
        # bucketize rounds an exact middle down. Above an odd code it has to round up, so that middle is one bit lower.
        middles[1::2] = torch.nextafter(middles[1::2], torch.tensor(0.0))
        self._middles = middles
        self._levels = torch.cat([levels, -levels])

    def codes(self, ratios: Tensor) -> Tensor:
        exponents = torch.bucketize(ratios.abs(), self._middles, out_int32=True).to(torch.uint8)
        return exponents | (torch.signbit(ratios).to(torch.uint8) << 3)

    def ratios(self, codes: Tensor) -> Tensor:
        return self._levels[codes.to(torch.int32)]


class Blocks(InTorch):
    """A block codec (contract: `Codec`): one fp32 scale for each block of 128 elements, and one code for each element.
    `levels` defines what the codes mean."""

    def __init__(self, name: str, levels: Levels) -> None:
        assert levels.bits in (4, 8)
        self.name = name
        self._levels = levels

    def nbytes(self, elements: int) -> int:
        return 4 * -(-elements // BLOCK) + self._code_bytes(elements)

    def encode(self, values: Tensor) -> bytes:
        assert finite(values), f"{self.name}: values that are not finite cannot be sent"
        return b"".join(self._encode_tile(values[start : start + TILE]) for start in range(0, values.numel(), TILE))

    def decode(self, payload: Payload, elements: int) -> Tensor:
        """Decode to a fresh fp32 tensor of finite values.

        Raises BadPayload: `length`; `scale` for a negative, NaN or infinite scale; `code` for a code that the encoder
        never writes."""
        raw = from_bytes(self, payload, elements)
        values, at = torch.empty(elements), 0
        for start in range(0, elements, TILE):
            tile = values[start : start + TILE]
            end = at + self.nbytes(len(tile))
            self._decode_tile(tile, raw[at:end])
            at = end
        return values

    def _code_bytes(self, elements: int) -> int:
        return -(-elements * self._levels.bits // 8)

    def _encode_tile(self, values: Tensor) -> bytes:
        blocks = in_blocks(values)
        scales = blocks.abs().amax(1)
        ratios = blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(1)
        codes = self._levels.codes(ratios).view(-1)[: len(values)]
        return to_bytes(scales) + to_bytes(codes if self._levels.bits == 8 else _join(codes))

    def _decode_tile(self, into: Tensor, raw: Tensor) -> None:
        scale_bytes = len(raw) - self._code_bytes(len(into))
        scales, packed = raw[:scale_bytes].clone().view(torch.float32), raw[scale_bytes:]
        check_scales(self.name, scales)
        codes = (packed if self._levels.bits == 8 else _split(packed))[: len(into)]
        ratios = self._levels.ratios(codes)
        blocks = in_blocks(ratios) * scales.unsqueeze(1)
        into.copy_(blocks.view(-1)[: len(into)])


def check_scales(name: str, scales: Tensor) -> None:
    """Raise BadPayload unless every scale of a received payload is finite and not negative."""
    if not finite(scales) or bool((scales < 0).any()):
        raise BadPayload(Code.SCALE, f"{name}: a scale is negative, NaN or infinite")


def _join(codes: Tensor) -> Tensor:
    """Pack two 4-bit codes into a byte, the earlier one in the low half."""
    pairs = pad(codes, (0, len(codes) % 2)).view(-1, 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def _split(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], 1).view(-1)


INT8 = Blocks("int8", Even(8))
INT4 = Blocks("int4", Even(4))
E3M0 = Blocks("e3m0", Powers())
