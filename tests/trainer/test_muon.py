"""Muon is compared with an independent implementation and with torch, and used in the inner loop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from peer.errors import StateError
from peer.run.sections import OptimizerSection
from peer.trainer import checkpoint, optimizer
from peer.trainer.data.account import DataPosition
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.optimizer import AdamW, Muon, orthogonal
from tests.trainer.test_inner_loop import config, inner_loop

Floats = NDArray[np.float64]
CONFIG = OptimizerSection(kind="muon")
WIDE, TALL, NORM = (3, 5), (6, 2), (4,)
SHAPES = (WIDE, NORM, TALL)
STEPS = 10


def drawn(step: int) -> list[Floats]:
    noise = np.random.default_rng([7, step])
    return [noise.normal(size=shape) for shape in SHAPES]


def rate(step: int) -> float:
    return 1e-2 / (step + 1)


def golden(sign: float = 1.0, reach: float = 0.2) -> list[Floats]:
    """Make ten steps by the equations, in float64. Other values of `sign` than 1 and of `reach` than 0.2 are errors."""
    params, gathered = drawn(0), [np.zeros(shape) for shape in SHAPES]
    for step in range(1, STEPS + 1):
        for at in (0, 2):
            grad = drawn(step)[at]
            gathered[at] = 0.95 * gathered[at] + 0.05 * grad
            update = 0.05 * grad + sign * 0.95 * gathered[at]
            rows, columns = update.shape
            x = update.T if rows > columns else update
            x = x / math.sqrt((x * x).sum())
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            params[at] = params[at] * (1 - rate(step) * 0.1)
            params[at] = params[at] - rate(step) * reach * math.sqrt(max(rows, columns)) * (
                x.T if rows > columns else x
            )
    mean, square = np.zeros(NORM), np.zeros(NORM)
    for step in range(1, STEPS + 1):
        grad = drawn(step)[1]
        mean, square = 0.9 * mean + 0.1 * grad, 0.95 * square + 0.05 * grad * grad
        unbiased = np.sqrt(square / (1 - 0.95**step)) + 1e-8
        params[1] = params[1] - rate(step) * mean / (1 - 0.9**step) / unbiased
    return params


def ours(divisor: float = 1.0) -> list[torch.Tensor]:
    """Make the same steps with `Muon`, in float64. `divisor`: factor by which the gradients are too large."""
    flat = torch.tensor(np.concatenate([value.reshape(-1) for value in drawn(0)]))
    views = [part.view(shape) for part, shape in zip(flat.split([15, 4, 12]), SHAPES, strict=True)]
    muon = Muon(flat, views, [True, False, True], CONFIG, [True, False, True])
    for step in range(1, STEPS + 1):
        muon.step([torch.tensor(divisor * grad) for grad in drawn(step)], rate(step), divisor)
    return views


def worst(found: list[torch.Tensor], expected: list[Floats]) -> float:
    return max(float((one - torch.tensor(other)).abs().max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_ten_steps_are_those_of_an_independent_program(divisor: float) -> None:
    assert worst(ours(divisor), golden()) < 1e-9


def test_a_wrong_sign_or_factor_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ours()
    assert worst(found, golden(sign=-1.0)) > 1e-3
    assert worst(found, golden(reach=0.19)) > 1e-4
    monkeypatch.setattr(optimizer, "ITERATIONS", 4)
    assert worst(ours(), golden()) > 1e-3


def test_it_agrees_with_that_of_torch() -> None:
    """They agree up to bf16 rounding, because torch orthogonalizes in bf16."""
    shape = (24, 16)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    theirs = torch.nn.Parameter(start.clone())
    torchs = torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    flat = start.reshape(-1).clone()
    muon = Muon(flat, [flat.view(shape)], [True], CONFIG, [True])
    for step in range(STEPS):
        grad = torch.randn(shape, generator=torch.Generator().manual_seed(2 + step))
        theirs.grad = grad.clone()
        torchs.step()
        muon.step([grad.clone()], 1e-2)
    moved = float((theirs.detach() - start).norm())
    assert float((flat.view(shape) - theirs.detach()).norm()) < 0.03 * moved


@pytest.mark.parametrize("shape", [(8, 8), (8, 32), (32, 8)])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(3))))
    assert float(values.min()) > 0.4
    assert float(values.max()) < 1.3


def test_nothing_comes_of_nothing() -> None:
    assert orthogonal(torch.zeros(3, 4)).tolist() == torch.zeros(3, 4).tolist()


def test_a_matrix_has_no_second_moment() -> None:
    flat = torch.zeros(31)
    views = [part.view(shape) for part, shape in zip(flat.split([15, 4, 12]), SHAPES, strict=True)]
    muon = Muon(flat, views, [True, False, True], CONFIG, [True, False, True])
    assert (muon.exp_avg.numel(), muon.exp_avg_sq.numel()) == (31, 4)
    assert muon.reason == "Muon for 2 matrices of the blocks, for the rest AdamW: torch's fused kernel"


def muon_loop(**choices: object) -> InnerLoop:
    return inner_loop(config(optimizer=OptimizerSection.model_validate({"kind": "muon", **choices})))


def test_it_learns_with_muon_on_the_matrices_of_the_blocks_alone() -> None:
    loop = muon_loop()
    own = loop.optimizer
    assert isinstance(own, Muon)
    blocks = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 16 * 24
    assert own.exp_avg_sq.numel() == loop.params.numel() - blocks, "embedding and norms keep theirs"
    losses = [loop.step() or 0.0 for _ in range(60)]
    assert losses[-1] < 4.5 < 5.4 < losses[0]


def test_adamw_is_as_it_was() -> None:
    loop = inner_loop()
    assert type(loop.optimizer) is AdamW
    assert loop.optimizer.exp_avg_sq.shape == loop.params.shape


def test_a_save_holds_its_state(tmp_path: Path) -> None:
    loop = muon_loop()
    for _ in range(5):
        loop.step()
    checkpoint.save(tmp_path, loop, 5, 0, [], DataPosition("", (0, 0, 0), [], []))
    again = muon_loop()
    assert checkpoint.load(tmp_path, again, 5) is not None
    again.batches.move_to(loop.batches.cursor)
    assert torch.equal(again.optimizer.exp_avg, loop.optimizer.exp_avg)
    assert torch.equal(again.optimizer.exp_avg_sq, loop.optimizer.exp_avg_sq)
    assert again.step() == loop.step()
    assert torch.equal(again.params, loop.params)
    with pytest.raises(StateError, match="another format or model"):
        checkpoint.load(tmp_path, inner_loop(), 5)


@pytest.mark.parametrize("given", [{"kind": "adamw", "momentum": 0.9}, {"kind": "muon", "momentum": 1.0}])
def test_a_momentum_that_cannot_be_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="momentum"):
        OptimizerSection.model_validate(given)
