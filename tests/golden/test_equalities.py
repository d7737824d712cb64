"""Methods that must give the same result as another method, or as an independent implementation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from peer.methods.diloco import nesterov_
from tests.golden.driver import Driver
from tests.golden.games import CUTS, GAMES, GASLOC_APART, NESTEROV, alone, game
from tests.golden.reference import TOLERANCE, Game


class TorchSgd:
    """The functions that `torch.optim.SGD(nesterov=True).step` calls, because importing the class itself takes
    seconds."""

    def __init__(self, start: Tensor, lr: float, momentum: float) -> None:
        self.params = start.clone()
        self._lr, self._momentum = lr, momentum
        self._buffers: list[Tensor | None] = [None]

    def step(self, gradient: Tensor) -> None:
        sgd(
            [self.params],
            [gradient.clone()],
            self._buffers,
            foreach=False,
            weight_decay=0.0,
            momentum=self._momentum,
            lr=self._lr,
            dampening=0.0,
            nesterov=True,
            maximize=False,
        )


def theirs(start: Tensor, gradients: list[Tensor], lr: float, momentum: float) -> Tensor:
    optimizer = TorchSgd(start, lr, momentum)
    for gradient in gradients:
        optimizer.step(gradient)
    return optimizer.params


def ours(start: Tensor, gradients: list[Tensor], lr: float, momentum: float) -> Tensor:
    params, speed = start.clone(), torch.zeros_like(start)
    for gradient in gradients:
        nesterov_(params, speed, gradient.clone(), outer_lr=lr, outer_momentum=momentum)
    return params


def test_nesterov_is_torchs_bit_for_bit_where_nothing_is_rounded() -> None:
    numbers = torch.Generator().manual_seed(0)
    gradients = [torch.randint(-8, 9, (100,), generator=numbers).float() for _ in range(6)]
    assert torch.equal(ours(torch.ones(100), gradients, 0.5, 0.5), theirs(torch.ones(100), gradients, 0.5, 0.5))


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (0.4, 0.9), (0.7, 0.5)])
def test_nesterov_is_torchs_to_rounding(lr: float, momentum: float) -> None:
    numbers = torch.Generator().manual_seed(1)
    start, *gradients = torch.randn(21, 500, generator=numbers)
    exact = theirs(start, gradients, lr, momentum)
    assert float((ours(start, gradients, lr, momentum) - exact).abs().max() / exact.abs().max()) < TOLERANCE


def plain_diloco(game: Game) -> list[Tensor]:
    """DiLoCo without fragments, delays, merges and outer state. Returns the outer params after each round."""
    assert game.tokens is not None
    optimizer = TorchSgd(torch.tensor(game.start[0], dtype=torch.float32), game.outer_lr, game.outer_momentum)
    rounds = []
    for weights, updates in zip(game.tokens, np.split(game.updates, len(game.tokens)), strict=True):
        progress = np.average(updates.sum(0), axis=0, weights=weights)
        optimizer.step(-torch.tensor(progress, dtype=torch.float32))
        rounds.append(optimizer.params.clone())
    return rounds


def test_one_fragment_merged_at_once_and_whole_is_plain_diloco() -> None:
    streaming = game(20, replicas=4, periods=5, group=True, fragments=1, delay=0, alpha=0.0, **NESTEROV)
    got = Driver(streaming).play()
    for round_, outer in enumerate(plain_diloco(streaming), 1):
        for who in range(4):
            params = torch.tensor(got[who, round_ * streaming.sync_every][0])
            assert float((params - outer).abs().max() / outer.abs().max()) < TOLERANCE


@pytest.mark.parametrize("replicas", [4, 5])
def test_the_mean_over_the_replicas_of_gasloc_is_nesterovs(replicas: int) -> None:
    """Holds for any pairing and any consensus. Nesterov's step is computed by torch from the mean work of all
    replicas."""
    paired = game(23, replicas=replicas, periods=10, **GASLOC_APART)
    got = Driver(paired).play()
    means = torch.tensor(paired.start.mean(0), dtype=torch.float32)
    optimizer = TorchSgd(means, paired.outer_lr, paired.outer_momentum)
    for round_, updates in enumerate(np.split(paired.updates, 10), 1):
        optimizer.step(-torch.tensor(updates.sum(0).mean(0), dtype=torch.float32))
        outer = np.mean([got[who, round_ * paired.sync_every][1] for who in range(replicas)], axis=0)
        assert np.abs(outer - optimizer.params.numpy()).max() / np.abs(outer).max() < TOLERANCE
    alike = np.ptp([got[who, len(paired.updates)][1] for who in range(replicas)], axis=0)
    assert alike.max() > 0.01, "the replicas themselves are not one"


def test_gasloc_alone_is_nesterovs() -> None:
    one = game(24, replicas=1, periods=10, **GASLOC_APART)
    nesterov = replace(one, rule="nesterov", consensus=0.0)
    got, same = Driver(one).play(), Driver(nesterov).play()
    assert all(np.abs(got[at][1] - same[at][1]).max() / np.abs(same[at][1]).max() < TOLERANCE for at in same)


@pytest.mark.parametrize("name", ["streaming-noloco", "streaming-diloco"])
def test_keeping_everything_local_is_never_exchanging(name: str) -> None:
    streaming = replace(GAMES[name], alpha=1.0)
    rounds, replicas = len(streaming.updates) // streaming.sync_every, len(streaming.start)
    none = replace(
        streaming,
        rule="sgd",
        outer_lr=1.0,
        outer_momentum=0.0,
        consensus=0.0,
        alpha=0.0,
        delay=0,
        fragments=CUTS[1],
        meetings=alone(replicas, rounds),
        tokens=None,
    )
    kept, control = Driver(streaming).play(), Driver(none).play()
    assert kept.keys() == control.keys()
    assert all(np.array_equal(kept[at][0], control[at][0]) for at in control)
    assert not all(np.array_equal(kept[at][1], control[at][1]) for at in control)


def inner(game: Game) -> list[np.ndarray]:
    """Return the params after each step of the inner optimizer alone, in fp32."""
    params, after = game.start[0].astype(np.float32), []
    for update in game.updates[:, 0].astype(np.float32):
        params = params + update
        after.append(params)
    return after


def test_the_control_is_the_inner_optimizer_bit_for_bit() -> None:
    control = game(21, replicas=1, meetings=alone(1, 3), rule="sgd", outer_lr=1.0, outer_momentum=0.0)
    got = Driver(control).play()
    assert all(np.array_equal(got[0, step][0], params) for step, params in enumerate(inner(control), 1))


@pytest.mark.parametrize("rule", ["nesterov", "sgd", "noloco", "gasloc"])
def test_alone_with_lr_1_and_no_momentum_is_the_inner_optimizer(rule: str) -> None:
    group = rule in ("nesterov", "sgd")
    one = game(22, replicas=1, group=group, rule=rule, outer_lr=1.0, outer_momentum=0.0, consensus=1.0)
    got = Driver(one).play()
    for step, params in enumerate(inner(one), 1):
        assert np.abs(got[0, step][0] - params).max() / np.abs(params).max() < TOLERANCE


@pytest.mark.parametrize("name", [name for name, made in GAMES.items() if made.tokens is not None])
def test_the_members_of_a_group_hold_one_state(name: str) -> None:
    got = Driver(GAMES[name]).play()
    for _, step in (at for at in got if at[0] == 0):
        for who in range(1, len(GAMES[name].start)):
            assert np.array_equal(got[who, step][1], got[0, step][1])
            assert np.array_equal(got[who, step][2], got[0, step][2])
