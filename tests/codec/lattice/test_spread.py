from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from peer.codec.lattice.codec import Modulo
from peer.codec.lattice.spread import FACTOR, GROWTH, KEPT, Distance, rms_apart, spread_of

HUGE = torch.finfo(torch.float32).max


def of_blocks(*sizes: float) -> Tensor:
    """Return blocks of values +-size, whose rms is the size."""
    signs = torch.ones(128)
    signs[::2] = -1
    return torch.cat([size * signs for size in sizes]) if sizes else torch.empty(0)


def test_rms_of_each_block() -> None:
    assert rms_apart(torch.empty(0), torch.empty(0)).shape == (0,)
    apart = rms_apart(of_blocks(3.0, 1.0)[:150], of_blocks(1.0, 0.5)[:150])
    assert torch.allclose(apart, torch.tensor([2.0, 0.5])), "a short last block is not thinned"
    assert float(rms_apart(torch.tensor([HUGE]), torch.tensor([-HUGE]))) == HUGE


@pytest.mark.parametrize("elements", [2**18 - 1, 2**18, 2**18 + 1])
def test_tiles_do_not_show(elements: int) -> None:
    assert torch.allclose(rms_apart(torch.full((elements,), 2.0), torch.zeros(elements)), torch.tensor(2.0))


def test_at_first_the_own_update_tells() -> None:
    spread = spread_of(Distance().expected(of_blocks(1.5, 3.0), of_blocks(1.0, 1.0)))
    assert torch.allclose(spread, FACTOR * math.sqrt(2) * torch.tensor([0.5, 2.0]))


def test_then_the_partners_do_unless_the_own_update_is_larger() -> None:
    distance, outer = Distance(), of_blocks(0.0, 0.0)
    own = of_blocks(1.0, 1.0)
    distance.learn(own, own + of_blocks(3.0, 0.1), distance.expected(own, outer))
    assert torch.allclose(distance.expected(own, outer), torch.tensor([3.0, math.sqrt(2)]))
    assert torch.allclose(distance.expected(own / 100, outer), torch.tensor([3.0, 0.1]))
    distance.learn(own, own, distance.expected(own, outer))
    assert torch.allclose(distance.expected(own / 100, outer), KEPT * torch.tensor([3.0, 0.1]))


def test_one_far_partner_does_not_make_the_next_ones_coarse() -> None:
    distance, outer, own = Distance(), of_blocks(0.0), of_blocks(1.0)
    distance.learn(own, own * 1e30, distance.expected(own, outer))
    assert float(distance.expected(own, outer)) == pytest.approx(GROWTH * math.sqrt(2))


def test_independent_updates_of_a_size_are_within_the_spread() -> None:
    random = torch.Generator().manual_seed(3)
    outer, updates = torch.randn(128_000, generator=random), torch.randn(2, 128_000, generator=random) * 0.01
    own, partner = outer + updates[0], outer + updates[1]
    _, failed = Modulo(7).decode(Modulo(7).encode(own, spread_of(Distance().expected(own, outer))), partner)
    assert float(failed.float().mean()) < 0.001
