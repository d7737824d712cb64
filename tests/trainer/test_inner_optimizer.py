from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from peer.run.sections import OptimizerSection
from peer.trainer import optimizer
from peer.trainer.optimizer import AdamW


def test_a_warm_up_and_a_decay_of_more_than_the_run_are_refused() -> None:
    assert OptimizerSection(schedule="wsd", warmup_fraction=0.5, decay_fraction=0.5).schedule == "wsd"
    assert OptimizerSection(warmup_fraction=0.9, decay_fraction=0.5).schedule == "cosine"
    with pytest.raises(ValidationError, match="not be more than 1 together"):
        OptimizerSection(schedule="wsd", warmup_fraction=0.5, decay_fraction=0.6)


@pytest.mark.parametrize(("fused", "tile"), [(True, 2**18), (False, 7), (False, 2**18)])
def test_adamw_agrees_with_that_of_torch(fused: bool, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "TILE", tile)
    noise = torch.Generator().manual_seed(0)
    flat = torch.randn(40, generator=noise)
    matrix, norm = torch.nn.Parameter(flat[:30].clone()), torch.nn.Parameter(flat[30:].clone())
    config = OptimizerSection()
    groups = [{"params": [matrix], "weight_decay": config.weight_decay}, {"params": [norm], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=1e-8)
    ours = AdamW(flat, [flat[30:], flat[:12].view(3, 4), flat[12:30]], [False, True, True], config, fused)
    for step in range(20):
        grad = torch.randn(40, generator=noise)
        matrix.grad, norm.grad = grad[:30].clone(), grad[30:].clone()
        for group in theirs.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        theirs.step()
        ours.step([3.0 * grad[30:], 3.0 * grad[:12].view(3, 4), 3.0 * grad[12:30]], 1e-2 / (step + 1), 3.0)
    torch.testing.assert_close(flat, torch.cat((matrix, norm)).detach(), atol=1e-6, rtol=1e-6)


def fresh_on(flat: torch.Tensor) -> AdamW:
    return AdamW(flat, [flat], [False], OptimizerSection())


def test_a_fresh_optimizer_warms_up_over_ten_steps() -> None:
    flat = torch.zeros(4)
    fresh = fresh_on(flat)
    seen = []
    for _ in range(12):
        seen.append(fresh.freshness)
        fresh.step([torch.ones(4)], 1e-3)
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0])


def test_the_fused_kernel_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fresh_on(torch.zeros(4)).reason == "AdamW: torch's fused kernel"
    monkeypatch.delattr(torch, "_fused_adamw_")
    lonely = fresh_on(torch.zeros(4))
    assert lonely.reason == "AdamW: in tiles, as torch has no fused kernel for cpu"
    lonely.step([torch.ones(4)], 1e-3)
    assert lonely.age == 1
