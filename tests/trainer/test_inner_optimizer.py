from __future__ import annotations

import math

import pytest
import torch

from peer.run.sections import OptimizerSection
from peer.trainer import optimizer
from peer.trainer.optimizer import AdamW, progress_of, schedule


def test_schedule_rises_linearly_and_falls_as_a_cosine() -> None:
    assert schedule(0.0, 0.1, 0.2) == 0.0
    assert schedule(0.05, 0.1, 0.2) == pytest.approx(0.5)
    assert schedule(0.1, 0.1, 0.2) == pytest.approx(1.0)
    assert schedule(0.55, 0.1, 0.2) == pytest.approx(0.6)
    assert schedule(0.325, 0.1, 0.2) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert schedule(1.0, 0.1, 0.2) == pytest.approx(0.2)
    assert schedule(7.0, 0.1, 0.2) == pytest.approx(0.2), "past the end"


def test_schedule_without_and_with_nothing_but_warm_up() -> None:
    assert schedule(0.0, 0.0, 0.1) == 1.0
    assert schedule(0.5, 1.0, 0.1) == 0.5
    assert schedule(1.0, 1.0, 0.1) == 1.0


def test_progress_by_both_clocks() -> None:
    assert progress_of(3, 15, 30, 10) == pytest.approx(0.35)
    assert progress_of(3, 999, None, 10) == pytest.approx(0.35)
    assert progress_of(12, 0, 30, 10) == 1.0


@pytest.mark.parametrize("tile", [7, 2**18])
def test_adamw_agrees_with_that_of_torch(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "TILE", tile)
    noise = torch.Generator().manual_seed(0)
    flat = torch.randn(40, generator=noise)
    matrix, norm = torch.nn.Parameter(flat[:30].clone()), torch.nn.Parameter(flat[30:].clone())
    config = OptimizerSection()
    groups = [{"params": [matrix], "weight_decay": config.weight_decay}, {"params": [norm], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=1e-8)
    ours = AdamW(flat, [flat[:30]], config)
    for step in range(20):
        grad = torch.randn(40, generator=noise)
        matrix.grad, norm.grad = grad[:30].clone(), grad[30:].clone()
        for group in theirs.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        theirs.step()
        ours.step(grad, 1e-2 / (step + 1))
    torch.testing.assert_close(flat, torch.cat((matrix, norm)).detach(), atol=1e-6, rtol=1e-6)


def test_a_fresh_optimizer_warms_up_over_ten_steps() -> None:
    flat = torch.zeros(4)
    fresh = AdamW(flat, [], OptimizerSection())
    seen = []
    for _ in range(12):
        seen.append(fresh.freshness)
        fresh.step(torch.ones(4), 1e-3)
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0])
