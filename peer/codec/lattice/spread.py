"""The expected distance of a partner's params, block by block: the `spread` of `peer.codec.lattice.codec`.

Two things are known. One's own update after the last outer step differs from an independent one of the same size by
sqrt(2) times itself. The last partners' distances were measured. The first alone is not enough: outer_params differ as
well. While the learning rate falls, they go on differing by the rest of larger updates."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from peer.codec.blocks import BLOCK
from peer.codec.lattice.codec import count_blocks, rows_at
from peer.codec.plain import TILE
from peer.codec.stream import Flat

FACTOR = 6.0
"""Largest expected difference over the rms of a block's differences. Among 128 draws of a normal distribution the
largest is about three times the rms."""
KEPT = 0.8
"""Part of the known distance that is kept in a round with a smaller difference."""
GROWTH = 4.0
"""At most, in a round: a partner that is far off, or says so, must not make the next ones coarse."""


class Distance:
    """The known distance of one fragment. Tensors are flat fp32 of its length, spreads and rms one number a block. It
    is kept in memory only: after a restart it begins with the own update."""

    def __init__(self) -> None:
        self._seen: Tensor | None = None

    def spread(self, params: Flat, outer_params: Tensor) -> Tensor:
        """Return the spread for `Modulo.encode` of these params."""
        return self._expected(params, outer_params).mul_(FACTOR)

    def learn(self, own: Flat, partner: Tensor, outer_params: Tensor) -> None:
        """After an exchange, before the outer step: the partner's params as decoded."""
        most = self._expected(own, outer_params).mul_(GROWTH)
        seen = rms_apart(own, partner).minimum(most)
        self._seen = seen if self._seen is None else seen.maximum(KEPT * self._seen)

    def _expected(self, params: Flat, outer_params: Tensor) -> Tensor:
        independent = rms_apart(params, outer_params).mul_(math.sqrt(2))
        return independent if self._seen is None else independent.maximum(self._seen)


def rms_apart(a: Flat, b: Flat) -> Tensor:
    """Return the root mean square of a - b in each block of 128. Where squares overflow, inf becomes the largest fp32.
    Temporaries are of a tile. The missing part of a short last block does not count."""
    assert a.numel() == b.numel()
    found = torch.empty(count_blocks(a.numel()))  # one, for results between temporaries would keep their memory apart
    for at in range(0, a.numel(), TILE):
        tile = slice(at, min(at + TILE, a.numel()))
        found[rows_at(at)] = _rms(a[tile] - b[tile])
    return found


def _rms(apart: Tensor) -> Tensor:
    blocks = pad(apart, (0, -len(apart) % BLOCK)).view(-1, BLOCK)
    rms = blocks.square().mean(1).sqrt_()
    if len(apart) % BLOCK:
        rms[-1] *= math.sqrt(BLOCK / (len(apart) % BLOCK))
    return rms.clamp_(max=torch.finfo(torch.float32).max)
