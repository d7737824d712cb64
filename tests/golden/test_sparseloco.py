"""SparseLoCo (arXiv 2508.15706) against its equations in float64 numpy, over ten rounds of three replicas.

In a round, with g = phi - theta, e the error feedback (0 at first) and C the top-k code of a chunk:

    e <- decay e + g;  D = C(e);  e <- e - D;  phi <- phi - lr mean(D), weighted by tokens;  theta <- phi

C keeps the 64 largest magnitudes of each 4096. Those above the middle of their range are replaced by their mean, and
the rest by the mean of the rest. A replica that is absent in a round keeps e and its work, and adopts the others'
result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.codec.error_feedback import ErrorFeedback
from peer.codec.registry import EVERY
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.sparse_result import SparseResult
from peer.methods.codec_specs import SPARSE
from peer.methods.method import Method
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.wire.payload import BytesSource
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

Vector = NDArray[np.float64]
ROUNDS, REPLICAS, ELEMENTS = 10, 3, 2 * 4096 + 1000
TOLERANCE = 1e-6
METHOD = resolve(SyncSection(preset="sparseloco"))
TOKENS = (100, 150, 120)


@dataclass(frozen=True)
class Numbers:
    """The constants of the equations."""

    lr: float = 1.0
    decay: float = 0.95
    kept: int = 64
    chunk: int = 4096
    tokens: tuple[float, ...] = TOKENS
    absent: tuple[tuple[int, int], ...] = ((4, 1), (7, 2))
    """(round, replica) pairs in which the replica is absent."""


PAPER = Numbers()


def updates() -> Vector:
    """Return the updates, [round, replica, element], with a heavy-tailed distribution and representable in fp32."""
    rng = np.random.default_rng(25)
    drawn = 0.01 * rng.standard_t(4, size=(ROUNDS, REPLICAS, ELEMENTS))
    return drawn.astype(np.float32).astype(np.float64)


def start() -> Vector:
    return np.random.default_rng(8).normal(size=ELEMENTS).astype(np.float32).astype(np.float64)


def code(values: Vector, numbers: Numbers) -> Vector:
    coded = np.zeros_like(values)
    for begin in range(0, len(values), numbers.chunk):
        chunk = values[begin : begin + numbers.chunk]
        places = np.argsort(-np.abs(chunk), kind="stable")[: numbers.kept]
        sizes = np.abs(chunk[places])
        high = sizes > (sizes.min() + sizes.max()) / 2
        level = np.where(high, sizes[high].mean(), sizes[~high].mean() if (~high).any() else 0.0)
        coded[begin + places] = np.sign(chunk[places]) * level
    return coded


def expected(numbers: Numbers) -> list[Vector]:
    """Return phi after each round, which is equal on all replicas."""
    phi, theta = start(), np.repeat(start()[None], REPLICAS, axis=0)
    error, after = np.zeros((REPLICAS, ELEMENTS)), list[Vector]()
    for round_, work in enumerate(updates()):
        theta = theta + work
        there = [who for who in range(REPLICAS) if (round_, who) not in numbers.absent]
        total, mean = sum(numbers.tokens[who] for who in there), np.zeros(ELEMENTS)
        for who in there:
            wanted = numbers.decay * error[who] + (phi - theta[who])
            sent = code(wanted, numbers)
            error[who] = wanted - sent
            mean += numbers.tokens[who] / total * sent
        stale, phi = phi, phi - numbers.lr * mean
        for who in range(REPLICAS):
            theta[who] = phi if who in there else theta[who] + (phi - stale)
        after.append(phi)
    return after


@dataclass
class Played:
    """The program's own parts, connected as in a group."""

    method: Method = METHOD
    feedback: Callable[[], ErrorFeedback] = lambda: ErrorFeedback(EVERY["topk"])
    after: list[Tensor] = field(default_factory=list)

    def play(self) -> list[Tensor]:
        layout, first = Layout.whole([TensorSpec("w", (ELEMENTS,))]), torch.tensor(start(), dtype=torch.float32)
        worlds = [OuterState.fresh(layout, first.clone()) for _ in range(REPLICAS)]
        thetas, memories = [first.clone() for _ in range(REPLICAS)], [self.feedback() for _ in range(REPLICAS)]
        for round_, work in enumerate(updates()):
            for theta, update in zip(thetas, work, strict=True):
                theta += torch.tensor(update, dtype=torch.float32)
            there = [who for who in range(REPLICAS) if (round_, who) not in PAPER.absent]
            parts = [self._part(worlds[who], thetas[who], memories[who], who) for who in there]
            mean = self._mean(parts)
            for who, (outer, theta) in enumerate(zip(worlds, thetas, strict=True)):
                stale = outer.fragment(0).clone()
                outer.step_with(0, MeanGradient(mean.clone(), [(0, ELEMENTS)]), self.method)
                theta.copy_(outer.fragment(0) if who in there else theta + (outer.fragment(0) - stale))
            assert all(torch.equal(outer.params, worlds[0].params) for outer in worlds)
            self.after.append(worlds[0].params.clone())
        return self.after

    def _part(self, outer: OuterState, theta: Tensor, memory: ErrorFeedback, who: int) -> Contribution:
        wanted = memory.add_to_(outer.contribution(0, theta.clone(), self.method.outer_rule))
        payload = BytesSource(EVERY[self.method.codec].encode(wanted))
        memory.settle(wanted, [(0, ELEMENTS)])
        return Contribution(TOKENS[who], payload, b"s" * 64)

    def _mean(self, parts: list[Contribution]) -> Tensor:
        assert self.method.result_codec == SPARSE
        result, into = SparseResult(EVERY[self.method.codec]), torch.empty(ELEMENTS)
        payload = result.make([(part, 1.0) for part in parts], torch.empty(ELEMENTS))
        result.read(payload, len(parts), into, lambda number, part: True)
        return into


def off(played: list[Tensor], exact: list[Vector]) -> float:
    """Return the largest error relative to the largest parameter."""
    pairs = zip(played, exact, strict=True)
    return max(float(np.abs(got.double().numpy() - phi).max() / np.abs(phi).max()) for got, phi in pairs)


def test_the_program_plays_the_equations() -> None:
    assert off(Played().play(), expected(PAPER)) <= TOLERANCE


@pytest.mark.parametrize(
    "change",
    [{"lr": 0.99}, {"decay": 0.94}, {"decay": 1.0}, {"kept": 63}, {"chunk": 4095}, {"tokens": (1, 1, 1)}],
    ids=str,
)
def test_another_number_is_noticed(change: dict[str, float]) -> None:
    assert off(Played().play(), expected(replace(PAPER, **change))) > TOLERANCE


def test_without_its_feedback_it_is_noticed() -> None:
    assert off(Played(feedback=lambda: ErrorFeedback(EVERY["topk"], 0.0)).play(), expected(PAPER)) > TOLERANCE
    assert off(Played(method=replace(METHOD, outer_lr=0.99)).play(), expected(PAPER)) > TOLERANCE
