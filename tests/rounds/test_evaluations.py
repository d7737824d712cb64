"""Which state was evaluated last, how long that took, and whether a peer that leaves evaluates once more."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import torch

from peer.aio.events import Shutdown
from peer.errors import TrainerDied
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.node.leaving.last_state import save_last_state
from peer.observe.events import Evaluated, Event
from peer.outer.state import OuterState
from peer.ports.trainer import Evaluation, Trainer
from peer.protocol.model.layout import Layout, TensorSpec
from peer.rounds.evaluation import LAST_MOST_S, Evaluations
from peer.rounds.status import RoundStatus

LAYOUT = Layout((TensorSpec("a", (8,)),), ((0, 1),))


class Judge:
    """A trainer that only evaluates, which takes the given seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.dies = False
        self.asked = 0

    async def evaluate(self, outer_params: torch.Tensor | None) -> Evaluation:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        if self.dies:
            raise TrainerDied("killed")
        return Evaluation(2.0, 3.0, 10)


class Made:
    def __init__(self, seconds: float = 3.0) -> None:
        self.judge, self.leaving, self.said = Judge(seconds), Shutdown(), list[Event]()
        self.outer = OuterState.fresh(LAYOUT, torch.zeros(8))
        self.all = Evaluations(
            cast(Trainer, self.judge),
            self.outer,
            VirtualClock(),
            asyncio.Lock(),
            RoundStatus(),
            self.leaving,
            self.said.append,
        )
        self.saved: list[int] = []
        self.told: list[str] = []

    async def save_now(self, round_: int) -> None:
        self.saved.append(round_)

    async def keep(self, round_: int) -> None:
        await save_last_state(cast(Any, self), self.all, round_, self.told.append)

    def step(self) -> None:
        with self.outer.stepping():
            pass


def test_without_a_measured_evaluation_none_is_begun_at_the_end() -> None:
    async def main() -> None:
        made = Made()
        made.leaving.set()
        await made.keep(4)
        assert (made.saved, made.judge.asked) == ([4], 0)
        assert made.all.reason(False).startswith("not evaluated: no evaluation has ended here")

    run_virtual(main())


def test_the_last_state_is_evaluated_once_after_it_is_saved() -> None:
    async def main() -> None:
        made = Made()
        await made.all.evaluate(3)
        assert (made.all.last_s(False), made.all.last_s(True)) == (0.0, pytest.approx(3.0))
        assert made.all.reason(False) == "the last state is evaluated already"
        made.step()
        assert made.all.last_s(False) == pytest.approx(3.0)
        made.leaving.set()
        await made.keep(4)
        await made.keep(4)
        assert [cast(Evaluated, event).round for event in made.said] == [3, 4]

    run_virtual(main())


def test_one_that_takes_too_long_here_is_not_begun_and_the_reason_is_told() -> None:
    async def main() -> None:
        made = Made(LAST_MOST_S + 1)
        await made.all.evaluate(3)
        made.step()
        assert (made.all.last_s(False), made.all.last_limit_s()) == (0.0, 0.0)
        assert made.all.reason(False) == "not evaluated: that takes 16 s here, and a leave gives it 15 s"

    run_virtual(main())


@pytest.mark.parametrize(("seconds", "dies"), [(1e6, False), (1.0, True)])
def test_a_last_evaluation_that_fails_is_told_and_keeps_nobody(seconds: float, dies: bool) -> None:
    async def main() -> None:
        made = Made()
        await made.all.evaluate(3)
        made.step()
        made.leaving.set()
        made.judge.seconds, made.judge.dies = seconds, dies
        await made.keep(4)
        assert made.saved == [4]
        assert len(made.said) == 1
        (told,) = made.told
        assert told.startswith("the last state is not evaluated: ")

    run_virtual(main())


def test_told_to_leave_in_the_middle_of_an_evaluation_gives_it_up() -> None:
    async def main() -> None:
        made = Made(100.0)
        asyncio.get_running_loop().call_later(5.0, made.leaving.set)
        await made.all.evaluate(3)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)
        await made.all.evaluate(3)  # no evaluation begins after the request to leave
        assert (made.said, made.judge.asked) == ([], 1)
        assert not made.all.current

    run_virtual(main())
