"""Eager updates compared with the paper's equation, which has no shared state, in float64 numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peer.methods.diloco import nesterov_
from peer.methods.sgd import descend_
from peer.outer import look_ahead
from peer.outer.look_ahead import LookAhead

ROUNDS, MEMBERS, ELEMENTS = 10, 3, 50
Vector = NDArray[np.float64]


def work() -> tuple[Vector, Vector]:
    """Return (start, what each member learns in each round), exactly representable in fp32."""
    rng = np.random.default_rng(11)
    drawn = rng.normal(size=ELEMENTS), 0.1 * rng.normal(size=(ROUNDS, MEMBERS, ELEMENTS))
    return drawn[0].astype(np.float32).astype(float), drawn[1].astype(np.float32).astype(float)


def papers(lr: float, momentum: float) -> Vector:
    """Return each member's outer params after its eager step, by the paper's equation: [round, member, element]."""
    start, learned = work()
    phi, m, before = np.repeat(start[None], MEMBERS, 0), np.zeros((MEMBERS, ELEMENTS)), None
    seen = []
    for updates in learned:
        theta = phi + updates
        g = phi - theta
        x = g / MEMBERS if before is None else before.mean(0) + (g - before) / MEMBERS
        m = momentum * m + x
        phi = phi - lr * (x + momentum * m)
        before = g
        seen.append(phi.copy())
    return np.array(seen)


def ours(lr: float, momentum: float) -> tuple[Vector, Vector]:
    """Return the same from `LookAhead`, and the shared state after each round's exchange."""
    start, learned = work()
    outer, speed = torch.tensor(start, dtype=torch.float32), torch.zeros(ELEMENTS)
    owns = [LookAhead.at(outer) for _ in range(MEMBERS)]
    params = [outer.clone() for _ in range(MEMBERS)]
    seen, shared = [], []
    for updates in learned:
        for own, theta, update in zip(owns, params, updates, strict=True):
            theta += torch.tensor(update, dtype=torch.float32)
            theta += own.advance(theta.clone(), outer, 1 / MEMBERS, lr, momentum)
        seen.append([theta.double().numpy().copy() for theta in params])
        mean = torch.stack([own.base - own.ahead for own in owns]).mean(0)
        if momentum:
            nesterov_(outer, speed, mean, outer_lr=lr, outer_momentum=momentum)
        else:
            descend_(outer, mean, outer_lr=lr)
        for own in owns:
            own.settle([(0, ELEMENTS)], momentum)
        shared.append(outer.double().numpy().copy())
    return np.array(seen), np.array(shared)


def error(lr: float, momentum: float) -> float:
    return float(np.abs(ours(lr, momentum)[0] - papers(lr, momentum)).max())


RULES = pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.5), (0.4, 0.9), (1.0, 0.0)])


@RULES
def test_ten_rounds_are_the_papers_equation(lr: float, momentum: float) -> None:
    assert error(lr, momentum) < 1e-6


@RULES
def test_the_shared_state_is_that_without_eager_updates_of_the_same_gradients(lr: float, momentum: float) -> None:
    """The shared state uses the complete mean of every round, and own parts leave no trace in it."""
    seen, shared = ours(lr, momentum)
    _, learned = work()
    bases = np.concatenate([np.repeat(work()[0][None, None], MEMBERS, 1), seen[:-1]])
    phi, m = work()[0], np.zeros(ELEMENTS)
    for base, updates, after in zip(bases, learned, shared, strict=True):
        g = (base - (base + updates)).mean(0)
        m = momentum * m + g
        phi = phi - lr * (g + momentum * m)
        assert np.abs(after - phi).max() < 1e-6


def mutated(source: str, old: str, new: str) -> str:
    assert old in source, old
    return source.replace(old, new)


MUTANTS: dict[str, Callable[[str], str]] = {
    "1 % less of the own part": lambda s: mutated(s, ".mul_(weight)", ".mul_(0.99 * weight)"),
    "own momentum left out": lambda s: mutated(s, "fresh.add_(speed.mul_(outer_momentum))", "fresh"),
    "own momentum not kept": lambda s: mutated(s, "self.speed[span].mul_(outer_momentum).add_(fresh)", "pass"),
    "sign turned": lambda s: mutated(s, "torch.sub(outer[part], fresh", "torch.add(outer[part], fresh"),
    "base left behind": lambda s: mutated(s, "self.base.copy_(self.ahead)", "pass"),
}


@pytest.mark.parametrize("mutate", MUTANTS.values(), ids=MUTANTS)
def test_the_golden_rounds_notice_an_error(mutate: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, object] = {"__name__": look_ahead.__name__}
    exec(compile(mutate(Path(look_ahead.__file__).read_text()), "mutant", "exec"), made)
    monkeypatch.setitem(globals(), "LookAhead", made["LookAhead"])
    assert not error(0.7, 0.5) < 1e-6


def test_work_that_was_not_exchanged_stays_open() -> None:
    """The next gradient contains it, because base and params were moved by the same amount."""
    outer = torch.zeros(4)
    own = LookAhead.at(outer)
    params = outer - 1.0
    params += own.advance(params.clone(), outer, 0.5, 1.0, 0.0)
    params -= 2.0
    own.advance(params.clone(), outer, 0.5, 1.0, 0.0)
    assert torch.equal(own.base - own.ahead, torch.full((4,), 3.0))


def test_a_state_that_is_taken_over_moves_the_own_part_along() -> None:
    outer = torch.zeros(4)
    own = LookAhead.at(outer)
    params = outer - 1.0
    params += own.advance(params.clone(), outer, 0.5, 1.0, 0.0)
    own.shift(torch.full((4,), 7.0))
    assert torch.equal(own.base - own.ahead, torch.ones(4))
