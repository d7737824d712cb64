"""The outer rules against the equations, written again in float64 numpy and independent of the code under test."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peer.outer.rules import all_finite, scale_work_
from peer.outer.state import OuterState
from peer.protocol.layout import Layout, TensorSpec

N = 257
LAYOUT = Layout.whole([TensorSpec("w", (N,))])


def noloco_reference(phi, delta, thetas, alpha, beta, gamma):  # type: ignore[no-untyped-def]
    """NoLoCo, Eq. 1-3 for the first of `thetas`, all peers' phi given: pseudo-gradient and consensus kept apart."""
    own_phi, mean_phi = phi[0], np.mean(phi, axis=0)
    mean_progress = np.mean([theta - p for theta, p in zip(thetas, phi, strict=True)], axis=0)
    delta = alpha * delta + beta * mean_progress - gamma * (own_phi - mean_phi)
    return own_phi + delta, delta


def relative(a: torch.Tensor, b: np.ndarray) -> float:
    return float(np.linalg.norm(a.double().numpy() - b) / np.linalg.norm(b))


def test_ten_rounds_of_a_pair_equal_the_equations() -> None:
    rng = np.random.default_rng(1)
    start = [rng.normal(size=N), rng.normal(size=N)]
    peers = [OuterState.fresh(LAYOUT, torch.tensor(s, dtype=torch.float32)) for s in start]
    phi = [p.params.double().numpy().copy() for p in peers]
    delta = [np.zeros(N), np.zeros(N)]
    for _ in range(10):
        theta = [(p.params + torch.tensor(rng.normal(size=N), dtype=torch.float32) * 0.1) for p in peers]
        exact = [t.double().numpy() for t in theta]
        for me, other in ((0, 1), (1, 0)):
            peers[me].step(0, theta[me].clone(), theta[other].clone(), rule="noloco", outer_lr=0.7, outer_momentum=0.5)
        stepped = [
            noloco_reference([phi[me], phi[1 - me]], delta[me], [exact[me], exact[1 - me]], 0.5, 0.7, 0.7)
            for me in (0, 1)
        ]
        phi, delta = [s[0] for s in stepped], [s[1] for s in stepped]
    for me in (0, 1):
        assert relative(peers[me].params, phi[me]) < 1e-6
        assert relative(peers[me].momentum, delta[me]) < 1e-5


def test_a_solo_step_is_the_pair_step_with_a_group_of_one() -> None:
    rng = np.random.default_rng(2)
    peer = OuterState.fresh(LAYOUT, torch.tensor(rng.normal(size=N), dtype=torch.float32))
    phi, delta = peer.params.double().numpy().copy(), np.zeros(N)
    for _ in range(5):
        theta = peer.params + 0.1
        exact = theta.double().numpy()
        peer.step(0, theta.clone(), None, rule="noloco", outer_lr=0.7, outer_momentum=0.5)
        phi, delta = noloco_reference([phi], delta, [exact], 0.5, 0.7, 0.7)
    assert relative(peer.params, phi) < 1e-6


def test_the_control_keeps_the_parameters_bit_for_bit() -> None:
    peer = OuterState.fresh(LAYOUT, torch.randn(N, generator=torch.Generator().manual_seed(0)))
    theta = torch.randn(N, generator=torch.Generator().manual_seed(1))
    peer.step(0, theta.clone(), None, rule="sgd", outer_lr=1.0, outer_momentum=0.0)
    assert torch.equal(peer.params, theta)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_scaled_work_is_a_part_of_the_way(share: float) -> None:
    outer, params = torch.full((4,), 2.0), torch.full((4,), 6.0)
    scale_work_(params, outer, share)
    assert torch.allclose(params, torch.full((4,), 2.0 + 4.0 * share))


def test_finite() -> None:
    huge = torch.full((8,), 3e38)
    assert all_finite(huge)
    assert all_finite(torch.empty(0))
    for bad in (float("nan"), float("inf"), float("-inf")):
        values = torch.ones(8)
        values[5] = bad
        assert not all_finite(values)
