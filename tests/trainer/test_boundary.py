"""The boundary with a loop of the test's own, whose params do not lie in a flat vector."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.protocol.model.layout import Layout, TensorSpec
from peer.trainer.arena import Arena, CounterFile, read_counters
from peer.trainer.boundary import Boundary

LAYOUT = Layout((TensorSpec("a", (2, 3)), TensorSpec("b", (4,)), TensorSpec("c", (5,))), ((0, 2), (2, 3)))
TOKENS = 8


class Line:
    """Plays the daemon's end of the pipe."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def answer(self, number: int) -> dict[str, Any]:
        (found,) = [message for message in self.sent if message.get("id") == number]
        return dict(found["ok"])


class Tensors:
    """A `TrainedModel` whose tensors are separate."""

    def __init__(self) -> None:
        self.round, self.step_in_round, self.scale = 0, 0, 1.0
        self.tensors = [torch.randn(spec.shape) for spec in LAYOUT.tensors]

    def move_to(self, round_: int, step: int) -> None:
        self.round, self.step_in_round = round_, step

    def scale_learning_rate(self, scale: float) -> None:
        self.scale = scale

    def flat(self, fragment: int) -> torch.Tensor:
        first, end = LAYOUT.fragments[fragment]
        return torch.cat([tensor.reshape(-1) for tensor in self.tensors[first:end]])

    def put(self, fragment: int, values: torch.Tensor) -> None:
        first, end = LAYOUT.fragments[fragment]
        sizes = [tensor.numel() for tensor in self.tensors[first:end]]
        for tensor, part in zip(self.tensors[first:end], values.split(sizes), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def read(self, fragment: int, into: torch.Tensor) -> None:
        into.copy_(self.flat(fragment))

    def merge(self, fragment: int, outer_params: torch.Tensor, alpha: float) -> None:
        self.put(fragment, alpha * self.flat(fragment) + (1 - alpha) * outer_params)

    def shift(self, fragment: int, difference: torch.Tensor) -> None:
        self.put(fragment, self.flat(fragment) + difference)


class NoData:
    def snapshot(self, fragment: int, tokens: int) -> Mapping[str, str]:
        return {}

    def rebase(self, fragment: int, tokens: int) -> None:
        """Do nothing: no data was drawn."""


class Loop:
    def __init__(self, folder: Path) -> None:
        self.folder, self.line, self.model = folder, Line(), Tensors()
        counters = CounterFile(folder, len(LAYOUT.fragments))
        self.arena = Arena(folder, LAYOUT, create=True)
        self.boundary = Boundary(
            self.line,  # type: ignore[arg-type]
            folder,
            LAYOUT,
            self.arena,
            counters,
            self.model,
            NoData(),
            {"evaluate": lambda message: {"ok": {"loss": 7.0}}},
        )

    def order(self, number: int, op: str, **fields: Any) -> None:
        self.line.inbox.put({"id": number, "op": op, **fields})

    def work(self, number: int, round_: int, fragment: int, steps: int, **fields: Any) -> None:
        given = {"until": None, "hold": True, "pause_after": None, "lr_scale": 1.0} | fields
        self.order(number, "work", round=round_, fragment=fragment, steps=steps, **given)

    def apply(self, number: int, fragment: int, base: int, next_round: int, alpha: float = 0.0) -> None:
        rest = {"after_steps": None, "after": None, "shift": False, "alpha": alpha}
        self.order(number, "apply", fragment=fragment, base=base, next_round=next_round, **rest)

    def train(self, *, skipped: bool = False, most: int = 100) -> int:
        """Make steps until the boundary permits no further one. Return their number."""
        for made in range(most):
            self.boundary.drain()
            self.boundary.cross()
            if not self.boundary.may_step():
                return made
            for tensor in self.model.tensors:
                tensor.add_(0.5)
            self.model.step_in_round += 1
            self.boundary.stepped(TOKENS, 1000, None if skipped else 3.0, 1e-6)
            self.boundary.show_progress(1e-6)
        return most


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


def test_snapshots_and_merges_are_exact_for_params_that_lie_apart(loop: Loop) -> None:
    for number, fragment in enumerate([0, 1, 0]):
        loop.work(10 + number, number, fragment, steps=4)
        assert loop.train() == 4
        work = loop.line.answer(10 + number)
        assert torch.equal(loop.arena.out_slot(fragment), loop.model.flat(fragment))
        other, outer = loop.model.flat(1 - fragment), torch.randn(LAYOUT.fragment_elements(fragment))
        loop.arena.in_slot(fragment).copy_(outer)
        loop.apply(20 + number, fragment, work["processed"], number + 1)
        loop.train()
        assert torch.equal(loop.model.flat(fragment), outer)
        assert torch.equal(loop.model.flat(1 - fragment), other), "the other fragment is nobody's business"
        assert (loop.model.round, loop.model.step_in_round) == (number + 1, 0)
    counters = read_counters(loop.folder, 2)
    assert (counters.tokens, counters.base) == (12 * TOKENS, (12 * TOKENS, 8 * TOKENS))


def test_it_trains_on_while_a_result_is_on_its_way_and_waits_where_the_order_says(loop: Loop) -> None:
    loop.work(1, 0, 0, steps=3, hold=False, pause_after=2)
    assert loop.train() == 5
    assert not loop.boundary.may_step()
    loop.arena.in_slot(0).zero_()
    loop.apply(2, 0, loop.line.answer(1)["processed"], 1, alpha=0.5)
    before = loop.model.flat(0)
    loop.boundary.wait(None)
    loop.boundary.cross()
    assert torch.equal(loop.model.flat(0), before / 2)
    assert loop.boundary.may_step()


def test_a_loop_without_losses_shows_its_progress_too(loop: Loop) -> None:
    loop.work(1, 0, 0, steps=3)
    loop.train(skipped=True)
    (progress,) = [message["progress"] for message in loop.line.sent if "progress" in message]
    assert (progress[0], progress[5]) == (0, 1)
    assert progress[2] != progress[2], "no loss is known"


def test_an_order_that_is_the_loops_own_is_answered_by_it(loop: Loop) -> None:
    loop.order(3, "evaluate")
    loop.train()
    assert loop.line.answer(3) == {"loss": 7.0}
