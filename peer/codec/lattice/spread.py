"""Estimates, for each block, how far a partner's params are from one's own: the `spread` of `peer.codec.lattice.codec`.

Two facts are used. If both partners made independent updates of the same size since the last outer step, their params
differ by sqrt(2) times one's own update. And the distances to the last partners were measured. The first fact alone is
not enough, because the partners' outer_params differ as well. While the learning rate falls, they still differ by the
remainder of earlier, larger updates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peer.codec.blocks import BLOCK, in_blocks
from peer.codec.lattice.codec import count_blocks, rows_at
from peer.codec.plain import TILE
from peer.codec.stream import Flat

FACTOR = 6.0
"""Largest expected difference in a block, as a multiple of the block's rms difference. The largest of 128 normally
distributed values is about three times their rms."""
KEPT = 0.8
"""Factor by which a measured distance decays in a round with a smaller one."""
GROWTH = 4.0
"""Largest factor by which the estimate grows in a round, so that a partner that is, or claims to be, far away does not
coarsen the steps of the next exchanges."""


class Distance:
    """The distance estimate of one fragment. Values are flat fp32 of the fragment's length; distances and spreads have
    one number per block. The estimate is in memory only and after a restart begins with the own update.

    In each exchange: `expected`, then the spread from it, and after the exchange `learn`."""

    def __init__(self) -> None:
        self._seen: Tensor | None = None

    def expected(self, params: Flat, outer_params: Tensor) -> Tensor:
        """Return the expected rms distance of the next partner's params from these."""
        independent = rms_apart(params, outer_params).mul_(math.sqrt(2))
        return independent if self._seen is None else independent.maximum(self._seen)

    def learn(self, own: Flat, partner: Tensor, expected: Tensor) -> None:
        """Update the estimate after an exchange. `partner`: the partner's params as decoded. `expected`: the distances
        that `expected` returned before the exchange."""
        seen = rms_apart(own, partner).minimum(GROWTH * expected)
        self._seen = seen if self._seen is None else seen.maximum(KEPT * self._seen)


def spread_of(expected: Tensor) -> Tensor:
    """Return the spread for `Modulo.encode` of params whose distance to the partner's is `expected`."""
    return FACTOR * expected


def rms_apart(a: Flat, b: Flat) -> Tensor:
    """Return the root mean square of a - b in each block of 128.

    A short last block counts only its own elements. Where squares overflow, the result is the largest fp32. Temporaries
    have the size of a tile."""
    assert a.numel() == b.numel()
    # allocated once: small results allocated between the temporaries would fragment memory
    found = torch.empty(count_blocks(a.numel()))
    for at in range(0, a.numel(), TILE):
        tile = slice(at, min(at + TILE, a.numel()))
        found[rows_at(at)] = _rms(a[tile] - b[tile])
    return found


def _rms(apart: Tensor) -> Tensor:
    rms = in_blocks(apart).square().mean(1).sqrt_()
    if last := apart.numel() % BLOCK:
        rms[-1] *= math.sqrt(BLOCK / last)
    return rms.clamp_(max=torch.finfo(torch.float32).max)
