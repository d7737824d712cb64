"""The lattice codec: full params at a few bits per value, for a receiver whose own params are close to them, such as
the other partner of a pair.

Each value of a block of 128 is rounded to an integer times a step. The integers have `bits` + 8 bits, of which only the
low `bits` are sent. The receiver takes the integer with these low bits that is nearest to its own value. The magnitude
of the params therefore costs no bits, and the two peers need no common base. This is quantization modulo a lattice, as
in Moniqua (arXiv 2002.11787) and SwarmSGD (1910.12308).

A checksum of the high bytes tells the receiver which blocks it reconstructed wrongly, because the params were further
apart than the sender expected. The receiver requests the high bytes of these blocks, one byte per value. The decoded
values depend neither on the receiver's own values nor on which blocks were requested.

The sender chooses the step from `spread`, the largest difference to the receiver that it expects in a block. A block
whose differences stay below `spread` and below the block's own largest magnitude never has to be requested. The step is
at least that magnitude / (127 * 2**bits), so that the high part fits into one byte. It is at most the step of plain
rounding to `bits` bits. With 7 bits, a payload is smaller than bf16 even if every block is requested.

A payload is the steps (bf16, one per block), the checksums (uint16, one per block), and the low bits of all values as
one bit stream, low bits first. Everything is little endian. The last block may be short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.blocks import BLOCK, check_scales, in_blocks
from peer.codec.plain import TILE, Payload, finite, from_bytes, to_bytes
from peer.codec.stream import Flat
from peer.codes import Code
from peer.errors import BadPayload

HEAD_BYTES = 4
"""Bytes of a block's step and checksum."""
ROWS = TILE // BLOCK
"""Blocks in a tile."""
TOP = 127
"""The largest high part; the smallest is -TOP."""
HUGE = torch.finfo(torch.float32).max
MULTIPLIERS = torch.from_numpy(np.frombuffer(blake3(b"peer modulo 1").digest(2 * BLOCK), "<u2").astype(np.int32) | 1)
"""Multipliers of the high parts in a block's checksum: fixed pseudo-random odd numbers. A single wrong high part is
always detected, and so are two that are off by one. Other errors are missed with a probability of about 2**-16."""


Heads: TypeAlias = tuple[Tensor, Tensor]
"""The steps (fp32) and checksums (int16) of a payload, one per block."""
LowsOf: TypeAlias = Callable[[slice, Tensor], Tensor]
"""Function (block range, mask of blocks in it) that returns the low parts (uint8) of the selected blocks."""


class Modulo:
    """The lattice codec with `bits` bits per value. It is not a `Codec`, because decoding needs the receiver's own
    values.

    Tensors of values are flat fp32 and finite (asserted). A set of blocks is a flat bool tensor with one element per
    block."""

    def __init__(self, bits: int) -> None:
        assert 3 <= bits <= 8
        self.name = f"modulo{bits}"
        self.bits = bits

    def nbytes(self, elements: int) -> int:
        return HEAD_BYTES * count_blocks(elements) + self.low_bytes(elements)

    def encode(self, values: Tensor, spread: Tensor | float) -> bytes:
        """Encode values. `spread`: the largest expected difference to the receiver, one number or one per block; not
        negative. Equal arguments always give equal bytes."""
        assert finite(values), f"{self.name}: values that are not finite cannot be sent"
        spreads = torch.as_tensor(spread, dtype=torch.float32).expand(count_blocks(values.numel()))
        heads = self.encode_heads(values, spreads)
        steps = self.steps_of(heads, values.numel())
        starts = range(0, values.numel(), TILE)
        return b"".join([heads, *(self.encode_lows(values[at : at + TILE], steps[rows_at(at)]) for at in starts)])

    def encode_heads(self, values: Flat, spreads: Tensor) -> bytes:
        """Encode the first part of a payload, the steps and checksums. `spreads`: one per block."""
        assert finite(spreads)
        assert not spreads.numel() or spreads.min() >= 0
        steps, checks = (torch.empty(len(spreads), dtype=kind) for kind in (torch.bfloat16, torch.int16))
        for start in range(0, values.numel(), TILE):
            blocks, rows = in_blocks(values[start : min(start + TILE, values.numel())]), rows_at(start)
            steps[rows] = self._steps(blocks, spreads[rows])
            checks[rows] = _check(_integers(blocks, steps[rows]) >> self.bits)
        return to_bytes(steps) + to_bytes(checks)

    def encode_lows(self, values: Tensor, steps: Tensor) -> bytes:
        """Encode the low bits of a tile, which follow the heads in a payload. `steps`: one per block of the tile."""
        return self._join(_integers(in_blocks(values), steps).view(-1)[: values.numel()])

    def steps_of(self, payload: Payload, elements: int) -> Tensor:
        """Return the steps (fp32, one per block) of a payload that this peer encoded, or of its heads alone."""
        raw = bytearray(payload[: 2 * count_blocks(elements)])
        return torch.frombuffer(raw, dtype=torch.bfloat16).to(torch.float32) if raw else torch.empty(0)

    def decode(self, payload: Payload, own: Tensor) -> tuple[Tensor, Tensor]:
        """Decode into a fresh tensor. Return the values and the undetermined blocks, as `decode_into` does."""
        values = torch.empty_like(own)
        return values, self.decode_into(payload, own, values)

    def decode_into(self, payload: Payload, own: Tensor, values: Tensor) -> Tensor:
        """Decode the sender's values into `values`, guided by the receiver's `own` values, which are not changed.

        Return the undetermined blocks. In these, `values` holds the receiver's own values until `decode_blocks_`.

        Raises BadPayload: `length`; `scale` for a negative, NaN or infinite step. All values written are finite."""
        assert values.shape == own.shape, (values.shape, own.shape)
        assert finite(own), f"{self.name}: own values that are not finite"
        raw = from_bytes(self, payload, own.numel())
        steps, checks = self.heads(raw, own.numel())
        failed = torch.empty(len(steps), dtype=torch.bool)
        for start in range(0, own.numel(), TILE):
            tile, rows = slice(start, start + TILE), rows_at(start)
            lows = self._lows_of(raw, own.numel(), rows)
            failed[rows] = self.decode_tile(own[tile], lows, steps[rows], checks[rows], values[tile])
        return failed

    def decode_tile(self, own: Tensor, lows: Tensor, steps: Tensor, checks: Tensor, values: Tensor) -> Tensor:
        """Decode one tile, as `decode_into`. `lows`: its low parts from `read_lows`, in complete blocks."""
        near = in_blocks(own)
        highs = self._nearest(near, lows, steps)
        failed = (_check(highs) != checks) & (steps > 0)
        found = self._values(highs, lows, steps)
        if bool(failed.any()):
            found[failed] = near[failed]
        values.copy_(found.view(-1)[: len(values)])
        return failed

    def encode_blocks(self, values: Flat, payload: Payload, wanted: Tensor) -> bytes:
        """Encode the answer to a receiver's request: the high parts of the `wanted` blocks of `values`.

        `payload` is the payload made of `values`, or its heads alone. The answer has 128 bytes per block, in order; a
        short last block is padded with zeros."""
        assert wanted.shape == (count_blocks(values.numel()),)
        steps = self.steps_of(payload, values.numel())
        answer = []
        for rows, chosen in tiles_with(wanted):
            blocks = in_blocks(values[rows.start * BLOCK : min(rows.stop * BLOCK, values.numel())])[chosen]
            highs = _integers(blocks, steps[rows][chosen]) >> self.bits
            answer.append(to_bytes(highs.to(torch.int8)))
        return b"".join(answer)

    def decode_blocks_(self, values: Tensor, payload: Payload, wanted: Tensor, answer: Payload) -> None:
        """Complete the `wanted` blocks of `values` in place, from the sender's `answer` about its `payload`.

        Temporaries have the size of a tile, apart from a copy of the payload. Raises BadPayload: `length`; `check` when
        the answer does not match the checksums of the payload. `values` is then unusable."""
        raw = from_bytes(self, payload, values.numel())
        heads = self.heads(raw, values.numel())
        self.complete_(
            values, heads, wanted, lambda rows, chosen: self._lows_of(raw, values.numel(), rows)[chosen], answer
        )

    def complete_(self, values: Tensor, heads: Heads, wanted: Tensor, lows: LowsOf, answer: Payload) -> None:
        """Complete the `wanted` blocks of `values`, as `decode_blocks_`. `lows` returns their low parts."""
        assert wanted.shape == (count_blocks(values.numel()),)
        if len(answer) != BLOCK * int(wanted.sum()):
            raise BadPayload(Code.LENGTH, f"{self.name}: {len(answer)} bytes for {int(wanted.sum())} blocks")
        (steps, checks), at = heads, 0
        for rows, chosen in tiles_with(wanted):
            size = BLOCK * int(chosen.sum())
            highs = torch.from_numpy(np.frombuffer(answer, np.int8, size, at).astype(np.int32)).view(-1, BLOCK)
            if bool((_check(highs) != checks[rows][chosen]).any()):
                raise BadPayload(Code.CHECK, f"{self.name}: a block was answered that is not the one sent")
            tile = values[rows.start * BLOCK : rows.stop * BLOCK]
            blocks = in_blocks(tile)
            blocks[chosen] = self._values(highs, lows(rows, chosen), steps[rows][chosen])
            tile.copy_(blocks.view(-1)[: len(tile)])
            at += size

    def _steps(self, blocks: Tensor, spreads: Tensor) -> Tensor:
        """Return the steps (bf16), rounded up so that the integers stay in their range and the spread in its window.

        The step is zero for a block of zeros, and for values so small that the step underflows (below 2**-136 with 7
        bits). Such values decode to zero."""
        largest, room = blocks.abs().amax(1), 2 ** (self.bits - 1) - 1
        steps = (spreads / room).maximum(largest / (TOP * 2**self.bits)).minimum(largest / room)
        upper: Tensor = (steps.view(torch.int32) + 0xFFFF) >> 16
        return upper.to(torch.int16).view(torch.bfloat16)

    def _nearest(self, near: Tensor, lows: Tensor, steps: Tensor) -> Tensor:
        """Return the high parts (int32) with which the integers are nearest to the values `near`."""
        return (near / _divisors(steps)).sub_(lows).div_(2**self.bits).round_().clamp_(-TOP, TOP).to(torch.int32)

    def _values(self, highs: Tensor, lows: Tensor, steps: Tensor) -> Tensor:
        integers = (highs << self.bits).add_(lows)
        return (integers * steps.unsqueeze(1)).clamp_(-HUGE, HUGE)

    def low_bytes(self, elements: int) -> int:
        """Return the bytes of the low parts of this many elements."""
        return -(-elements * self.bits // 8)

    def heads(self, raw: Tensor, elements: int) -> Heads:
        """Return the steps (fp32) and checksums (int16) of a payload, or of its heads alone. Raises BadPayload
        (`scale`)."""
        blocks = count_blocks(elements)
        steps = raw[: 2 * blocks].view(torch.bfloat16).to(torch.float32)
        check_scales(self.name, steps)
        return steps, raw[2 * blocks : HEAD_BYTES * blocks].view(torch.int16)

    def _join(self, integers: Tensor) -> bytes:
        lows = (integers & (2**self.bits - 1)).to(torch.uint8).numpy()
        bits = np.unpackbits(lows[:, None], axis=1, count=self.bits, bitorder="little")
        return np.packbits(bits.reshape(-1), bitorder="little").tobytes()

    def _lows_of(self, raw: Tensor, elements: int, rows: slice) -> Tensor:
        first, last = rows.start * BLOCK, min(rows.stop * BLOCK, elements)
        at = HEAD_BYTES * count_blocks(elements)
        packed = raw[at + self.low_bytes(first) : at + self.low_bytes(last)].numpy()
        return self.read_lows(packed, last - first)

    def read_lows(self, packed: np.ndarray[Any, np.dtype[np.uint8]], elements: int) -> Tensor:
        """Unpack the low parts (uint8, blocks x 128) of complete blocks. A short last block is padded with zeros."""
        bits = np.unpackbits(packed, count=elements * self.bits, bitorder="little").reshape(-1, self.bits)
        whole = np.zeros((elements, 8), np.uint8)  # packing rows of eight as one is several times faster
        whole[:, : self.bits] = bits
        return in_blocks(torch.from_numpy(np.packbits(whole.reshape(-1), bitorder="little")))


def count_blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def rows_at(element: int) -> slice:
    """Return the range of blocks in the tile that begins at this element."""
    return slice(element // BLOCK, element // BLOCK + ROWS)


def encode_request(wanted: Tensor) -> bytes:
    """Encode the set of blocks that a receiver requests: one bit per block, low bits first."""
    return np.packbits(wanted.numpy(), bitorder="little").tobytes()


def decode_request(request: Payload, elements: int) -> Tensor:
    """Decode a request that `encode_request` wrote, for a payload of this many elements.

    Raises BadPayload: `length`; `index` for a block after the last one."""
    blocks = count_blocks(elements)
    if len(request) != -(-blocks // 8):
        raise BadPayload(Code.LENGTH, f"{len(request)} bytes ask for some of {blocks} blocks")
    bits = np.unpackbits(np.frombuffer(request, np.uint8), bitorder="little")
    if bits[blocks:].any():
        raise BadPayload(Code.INDEX, f"a block after the last of {blocks} is asked for")
    return torch.from_numpy(bits[:blocks].astype(np.bool_))


def _divisors(steps: Tensor) -> Tensor:
    return steps.masked_fill(steps == 0, 1.0).unsqueeze(1)


def _integers(blocks: Tensor, steps: Tensor) -> Tensor:
    return (blocks / _divisors(steps.to(torch.float32))).round_().to(torch.int32)


def _check(highs: Tensor) -> Tensor:
    """Return the checksum (int16) of each row of high parts. The sums stay below 2**31."""
    return (highs * MULTIPLIERS).sum(1, dtype=torch.int32).to(torch.int16)


def tiles_with(wanted: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield each tile that contains a wanted block: its range of blocks, and the mask of the wanted ones in it."""
    for first in range(0, len(wanted), ROWS):
        rows = slice(first, first + ROWS)
        if bool(wanted[rows].any()):
            yield rows, wanted[rows]
