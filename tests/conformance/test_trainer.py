"""Conformance suite for all trainers: the fake one, the tiny one and a real process.

Starting a process takes seconds, so all scenes share one. Each scene begins with a trainer at rest that has no
outstanding work."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.errors import TrainerDied
from peer.lab.sim import tiny_model
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.ports.clock import Clock
from peer.ports.trainer import AT_ONCE, Merge, ProbeTerms, Trainer, WorkRequest, WorkSnapshot
from peer.protocol.messages import RoundKey
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.pair.probe_verdict import ProbeLosses
from peer.protocol.policy.donors import LEAST_WINDOWS, impossible_reason
from peer.run.sections import DataSection, LlamaSection, TrainSection
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.trainer.data import BLOCK_BYTES, load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params, layout_of
from tests.support.seeds import nightly

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
)
NEVER = Merge(0.0, after_steps=10**9)
STEP_S = 0.125
PATIENCE_S = 360.0


class Straight(Protocol):
    """An inner loop without interruptions."""

    params: torch.Tensor

    def step(self) -> float | None: ...
    def move_to(self, round_: int, step: int) -> None: ...
    def merge(self, fragment: int, outer_params: torch.Tensor, alpha: float) -> None: ...


@dataclass
class Stage:
    """A trainer with two fragments, and the values that the scenes need."""

    trainer: Trainer
    clock: Clock
    layout: Layout
    first: torch.Tensor
    tokens: int
    """Of a step."""
    folder: Path
    steps: int = 7
    """Of a round: long enough for the next request to come in time."""
    delay: int = 5
    """In steps: long enough for a result to come in time."""
    straight: Callable[[], Straight] | None = None
    round: int = 0
    waits: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether time is virtual, so that counts between two calls are predictable."""
        return isinstance(self.trainer, VirtualTrainer)

    async def work(
        self, fragment: int, steps: int | None = None, *, hold: bool, pause_after: int | None = None
    ) -> WorkSnapshot:
        steps = self.steps if steps is None else steps
        request = WorkRequest(RoundKey(self.round, fragment), steps, None, hold, pause_after=pause_after)
        work = await self.trainer.work(request)
        self.round += 1
        return work

    async def apply(self, work: WorkSnapshot, result: torch.Tensor, merge: Merge = AT_ONCE) -> None:
        await self.trainer.apply(work.key, result, work.processed, work.key.round + 1, merge)

    def begin(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(call)
        self.waits.append(task)
        return task

    def constant(self, fragment: int, value: float) -> torch.Tensor:
        return torch.full((self.layout.fragment_elements(fragment),), value)

    def counted(self) -> tuple[int, tuple[int, ...]]:
        """Return steps, and the base of each fragment in tokens."""
        counters = self.trainer.counters()
        assert counters.tokens == counters.steps * self.tokens
        return counters.steps, counters.base

    async def until_steps(self, steps: int) -> None:
        while self.trainer.counters().steps < steps:
            await self.clock.sleep(STEP_S / 8)

    async def settle(self) -> None:
        """Bring the trainer to rest in a new round, with nothing outstanding."""
        self.trainer.hold()
        for task in self.waits:
            await task
        self.waits.clear()
        for fragment in (0, 1):
            work = await self.work(fragment, 0, hold=True)
            await self.apply(work, work.params.clone())
        steps, base = self.counted()
        assert base == (steps * self.tokens,) * 2

    def kill(self) -> None:
        if isinstance(self.trainer, VirtualTrainer):
            self.trainer.kill()
        else:
            assert isinstance(self.trainer, TrainerClient)
            assert self.trainer.pid is not None
            os.kill(self.trainer.pid, signal.SIGKILL)


Scene = Callable[[Stage], Awaitable[None]]


# -- scenes ------------------------------------------------------------------------------------------------------------


async def held_it_does_nothing_until_the_next_work(stage: Stage) -> None:
    before, _ = stage.counted()
    work = await stage.work(0, 6, hold=True)
    assert (work.steps, work.tokens, work.details.skipped) == (6, 6 * stage.tokens, 0)
    assert work.processed == (before + 6) * stage.tokens
    assert work.seconds > 0
    assert math.isfinite(work.loss)
    await stage.clock.sleep(2 * STEP_S)
    assert stage.counted() == (before + 6, (before * stage.tokens,) * 2)
    waited = stage.trainer.counters().seconds_waiting
    await stage.apply(work, stage.constant(0, 0.25))
    assert stage.counted() == (before + 6, (work.processed, before * stage.tokens))
    assert stage.trainer.counters().seconds_waiting >= waited + 2 * STEP_S - 0.01
    again = await stage.work(0, 0, hold=True)
    assert (again.steps, again.tokens) == (0, 0)
    assert torch.equal(again.params, stage.constant(0, 0.25)), "alpha 0 copies"
    other = await stage.work(1, 3, hold=True)
    assert (other.steps, other.tokens) == (9, 9 * stage.tokens), "the other fragment's base has not moved"


async def not_held_it_goes_on_and_a_late_request_gets_the_next_boundary(stage: Stage) -> None:
    before, _ = stage.counted()
    first = await stage.work(0, 2, hold=False)
    assert first.processed == (before + 2) * stage.tokens
    await stage.until_steps(before + 2 + 4)
    now, base = stage.counted()
    assert base == (before * stage.tokens,) * 2
    late = await stage.work(1, 3, hold=True)
    assert late.steps * stage.tokens == late.tokens == late.processed - before * stage.tokens
    assert late.steps >= now - before
    if stage.exact:
        assert late.steps <= now - before + 1
    await stage.apply(first, stage.constant(0, 1.0))
    again = await stage.work(0, 0, hold=True)
    assert again.tokens == again.processed - first.processed == again.steps * stage.tokens


async def steps_count_from_the_last_snapshot_of_any_fragment(stage: Stage) -> None:
    before, _ = stage.counted()
    works = [await stage.work(fragment, hold=last) for fragment, last in ((0, False), (1, False), (0, True))]
    ends = [(before + (n + 1) * stage.steps) * stage.tokens for n in range(3)]
    assert [work.processed for work in works] == ends
    assert [work.steps for work in works] == [stage.steps, 2 * stage.steps, 3 * stage.steps]
    await stage.apply(works[2], stage.constant(0, 0.5))
    assert stage.counted()[1] == (ends[2], before * stage.tokens)


async def a_result_waits_for_its_boundary_and_no_longer(stage: Stage) -> None:
    before, _ = stage.counted()
    work = await stage.work(0, 3, hold=False)
    await stage.apply(work, stage.constant(0, 2.0), Merge(0.5, after_steps=stage.delay))
    steps, base = stage.counted()
    assert base == (work.processed, before * stage.tokens)
    assert steps >= before + 3 + stage.delay
    if stage.exact:
        assert steps == before + 3 + stage.delay
    again = await stage.work(0, hold=True)
    assert again.tokens == again.processed - work.processed == again.steps * stage.tokens


async def results_of_two_fragments_wait_beside_a_work(stage: Stage) -> None:
    before, _ = stage.counted()
    first = await stage.work(0, hold=False)
    one = stage.begin(stage.apply(first, stage.constant(0, 0.5), Merge(0.0, after_steps=2 * stage.steps)))
    second = await stage.work(1, hold=False)
    two = stage.begin(stage.apply(second, stage.constant(1, 0.5), Merge(0.0, after_steps=stage.steps // 2)))
    await two
    assert not one.done()
    assert stage.counted()[1] == (before * stage.tokens, second.processed)
    third = await stage.work(1, 3 * stage.steps, hold=False)
    await one
    assert third.tokens == third.processed - second.processed == third.steps * stage.tokens
    assert stage.counted()[1] == (first.processed, second.processed)
    fourth = await stage.work(0, 0, hold=True)
    assert fourth.tokens == fourth.processed - first.processed == fourth.steps * stage.tokens


async def at_rest_a_result_waits_for_nothing(stage: Stage) -> None:
    first = await stage.work(0, 2, hold=False)
    waiting = stage.begin(stage.apply(first, stage.constant(0, 0.125), NEVER))
    second = await stage.work(1, hold=True)
    await waiting
    await stage.apply(second, stage.constant(1, 0.5), NEVER)
    assert stage.counted()[1] == (first.processed, second.processed)
    third = await stage.work(1, 2, hold=False)
    waiting = stage.begin(stage.apply(third, stage.constant(1, 0.75), NEVER))
    await asyncio.sleep(0)
    stage.trainer.hold()
    await waiting
    still = stage.counted()
    await stage.clock.sleep(2 * STEP_S)
    assert stage.counted() == still
    fourth = await stage.work(1, 0, hold=True)
    assert torch.equal(fourth.params, stage.constant(1, 0.75))


async def moments_are_boundaries_too(stage: Stage) -> None:
    now = stage.clock.raw(stage.clock.now())
    until = now + 4.3 * STEP_S
    request = WorkRequest(RoundKey(stage.round, 0), None, until, hold=False)
    stage.round += 1
    work = await stage.trainer.work(request)
    after = until + 2.3 * STEP_S
    await stage.apply(work, stage.constant(0, 0.5), Merge(0.0, after=after))
    assert stage.clock.raw(stage.clock.now()) >= after
    assert stage.counted()[1][0] == work.processed
    assert work.steps > 0
    if stage.exact:
        assert work.steps == 4, "the nearest"
        assert stage.clock.raw(stage.clock.now()) - now == pytest.approx(7 * STEP_S, abs=1e-4)


async def alpha_1_leaves_the_params_and_moves_the_base(stage: Stage) -> None:
    work = await stage.work(0, 2, hold=True)
    taken = work.params.clone()
    await stage.apply(work, stage.constant(0, math.inf), Merge(1.0))
    assert stage.counted()[1][0] == work.processed
    again = await stage.work(0, 0, hold=True)
    assert torch.equal(again.params, taken)
    await stage.apply(again, stage.constant(0, 1.0), Merge(0.5))
    third = await stage.work(0, 0, hold=True)
    assert torch.equal(third.params, taken * 0.5 + 0.5)


async def a_shift_moves_the_params_and_not_the_base(stage: Stage) -> None:
    work = await stage.work(0, 2, hold=True)
    await stage.apply(work, stage.constant(0, 0.25))
    before, other = await stage.work(0, 0, hold=True), await stage.work(1, 0, hold=True)
    taken, untouched, counted = before.params.clone(), other.params.clone(), stage.counted()
    await stage.trainer.apply(RoundKey(stage.round, 0), stage.constant(0, 0.5), 0, 0, Merge(shift=True))
    assert stage.counted() == counted
    after = await stage.work(0, 0, hold=True)
    assert torch.equal(after.params, taken + 0.5)
    assert torch.equal((await stage.work(1, 0, hold=True)).params, untouched)
    first = await stage.work(0, 2, hold=False)
    waiting = stage.begin(stage.apply(first, stage.constant(0, 0.125), NEVER))
    last = await stage.work(1, stage.steps, hold=True)
    await waiting
    assert (last.tokens, stage.counted()[1][0]) == (last.processed - other.processed + other.tokens, first.processed)
    assert last.steps == 4 + stage.steps


async def a_state_is_weighed_before_the_start(stage: Stage) -> None:
    """Equal seeds give equal windows. The state from which training starts is another one."""
    wild = 3 * torch.randn(stage.first.shape, generator=torch.Generator().manual_seed(1))
    await stage.trainer.stop()
    found = await stage.trainer.weigh(stage.first, 7, 60.0)
    if isinstance(found, str):
        assert isinstance(stage.trainer, FakeTrainer), found
    else:
        assert len(found.windows) >= LEAST_WINDOWS
        assert await stage.trainer.weigh(stage.first, 7, 60.0) == found
        assert await stage.trainer.weigh(stage.first, 8, 60.0) != found, "other windows"
        lied = await stage.trainer.weigh(wild, 7, 60.0)
        assert not isinstance(lied, str)
        assert impossible_reason(found) == ""
        assert impossible_reason(lied)
    await stage.trainer.start(stage.first, stage.round, None)
    assert torch.equal((await stage.work(0, 0, hold=True)).params, stage.first[slice(*stage.layout.fragment_span(0))])


async def a_probe_only_looks(stage: Stage) -> None:
    """A partner that sends our own values scores as well as we do, and a probe leaves no trace."""
    work = await stage.work(0, hold=True)
    before = await stage.trainer.evaluate(None)
    start, end = stage.layout.fragment_span(0)
    same, base = work.params.clone(), stage.first[start:end].clone()
    other = torch.randn(base.shape, generator=torch.Generator().manual_seed(1))

    async def probe(partner: torch.Tensor, seed: int, share: float = 1.0) -> ProbeLosses | str:
        terms = ProbeTerms(seed=seed, share=share, taken=1.0, within_s=60.0)
        return await stage.trainer.probe(work.key, base, partner, terms)

    found = await probe(same, 7)
    if isinstance(found, str):
        assert isinstance(stage.trainer, FakeTrainer), found
        return
    assert len(found.own) >= 3
    assert found.own == pytest.approx(found.mixed, rel=1e-5)
    assert found.own == pytest.approx(found.partner, rel=1e-5)
    assert found.own != found.base, "it has worked"
    assert await probe(same, 7) == found
    assert await probe(same, 8) != found, "other windows"
    lied = await probe(other, 7)
    assert not isinstance(lied, str)
    assert (lied.base, lied.own) == (found.base, found.own)
    assert lied.mixed != found.mixed
    assert lied.partner != found.partner
    assert await stage.trainer.evaluate(None) == before
    assert not list(stage.folder.glob("probe*"))


async def an_evaluation_disturbs_nothing_that_waits(stage: Stage) -> None:
    other = torch.linspace(-0.25, 0.25, stage.layout.elements)
    loss = (await stage.trainer.evaluate(other)).loss
    work = await stage.work(0, 2, hold=False)
    waiting = stage.begin(stage.apply(work, stage.constant(0, 0.5), NEVER))
    request = stage.begin(stage.work(1, 3 * stage.steps, hold=False))
    await asyncio.sleep(0)
    assert (await stage.trainer.evaluate(other)).loss == loss
    assert not waiting.done()
    second = await request
    assert second.steps == 2 + 3 * stage.steps
    stage.trainer.hold()
    await waiting
    again = await stage.work(0, 0, hold=True)
    assert torch.equal(again.params, stage.constant(0, 0.5))


async def a_result_may_come_after_the_next_snapshot(stage: Stage) -> None:
    first = await stage.work(0, 3, hold=True)
    second = await stage.work(0, 4, hold=True)
    assert second.steps == 7
    await stage.apply(first, stage.constant(0, 0.5))
    third = await stage.work(0, 2, hold=True)
    assert (third.steps, third.tokens) == (6, 6 * stage.tokens)
    await stage.apply(second, stage.constant(0, 0.5))
    await stage.apply(third, stage.constant(0, 0.5))
    fourth = await stage.work(0, 1, hold=True)
    assert (fourth.steps, fourth.tokens) == (1, stage.tokens)


async def a_result_due_with_its_fragment_is_merged_first(stage: Stage) -> None:
    """The merge delay is a whole sync_every."""
    first = await stage.work(0, hold=False)
    result = stage.constant(0, 0.5)
    waiting = stage.begin(stage.apply(first, result, Merge(0.0, after_steps=stage.steps)))
    second = await stage.work(0, hold=True)
    await waiting
    assert torch.equal(second.params, result)
    assert (second.steps, second.tokens) == (stage.steps, stage.steps * stage.tokens)


async def paused_it_waits_for_the_result(stage: Stage) -> None:
    before, _ = stage.counted()
    first = await stage.work(0, 2, hold=False, pause_after=3)
    request = stage.begin(stage.work(1, 9, hold=True))
    await stage.until_steps(before + 5)
    waited = stage.trainer.counters().seconds_waiting
    await stage.clock.sleep(3 * STEP_S)
    assert stage.counted() == (before + 5, (before * stage.tokens,) * 2), "three steps, and no more"
    await stage.apply(first, stage.constant(0, 0.5), Merge(0.0, after_steps=3))
    assert stage.trainer.counters().seconds_waiting >= waited + 3 * STEP_S - 0.01
    second = await request
    assert second.steps == 11
    assert stage.counted()[1][0] == first.processed
    third = await stage.work(0, 1, hold=False, pause_after=0)
    request = stage.begin(stage.work(1, 4, hold=True))
    await stage.clock.sleep(2 * STEP_S)
    assert stage.counted()[0] == before + 12
    stage.trainer.release(third.key)
    assert (await request).processed == (before + 16) * stage.tokens
    assert stage.counted()[1][0] == first.processed, "released, not merged"


async def who_gives_up_a_call_breaks_nothing(stage: Stage) -> None:
    first = await stage.work(0, 2, hold=False)
    giving_up = asyncio.create_task(stage.apply(first, stage.constant(0, 0.5), Merge(0.0, after_steps=stage.delay)))
    request = asyncio.create_task(stage.work(1, 10**9, hold=False))
    await asyncio.sleep(0)
    for task in (giving_up, request):
        task.cancel()
    await asyncio.wait({giving_up, request})
    await stage.trainer.save(stage.folder)
    for _ in range(100):
        if stage.counted()[1][0] == first.processed:
            break
        await stage.clock.sleep(STEP_S)
    steps, base = stage.counted()
    assert base[0] == first.processed, "the merge still came: the trainer was at rest"
    again = await stage.work(0, 2, hold=True)
    assert again.processed == max(steps * stage.tokens, first.processed + 2 * stage.tokens)
    assert again.tokens == again.processed - first.processed == again.steps * stage.tokens
    await stage.apply(again, stage.constant(0, 0.5))


SCENES: tuple[Scene, ...] = (
    held_it_does_nothing_until_the_next_work,
    not_held_it_goes_on_and_a_late_request_gets_the_next_boundary,
    steps_count_from_the_last_snapshot_of_any_fragment,
    a_result_waits_for_its_boundary_and_no_longer,
    results_of_two_fragments_wait_beside_a_work,
    at_rest_a_result_waits_for_nothing,
    moments_are_boundaries_too,
    alpha_1_leaves_the_params_and_moves_the_base,
    a_shift_moves_the_params_and_not_the_base,
    a_probe_only_looks,
    a_state_is_weighed_before_the_start,
    an_evaluation_disturbs_nothing_that_waits,
    a_result_may_come_after_the_next_snapshot,
    a_result_due_with_its_fragment_is_merged_first,
    paused_it_waits_for_the_result,
    who_gives_up_a_call_breaks_nothing,
)


async def the_path_is_that_of_a_straight_loop(stage: Stage) -> None:
    """Four rounds with results of every alpha merged in between give the same bits as a loop without interruptions, so
    each result is merged at exactly its step. Requests arrive when the trainer has already reached their round."""
    assert stage.straight is not None
    plan = [(0, 0.5), (1, 0.0), (0, 1.0), (1, None)]
    taken: list[torch.Tensor] = []
    for fragment, alpha in plan:
        work = await stage.work(fragment, hold=alpha is None)
        taken.append(work.params.clone())
        if alpha is not None:
            stage.begin(stage.apply(work, 0.75 * taken[-1], Merge(alpha, after_steps=stage.delay)))
            await stage.until_steps(work.processed // stage.tokens + 2)
    loop = stage.straight()
    for round_, (fragment, _) in enumerate(plan):
        for step in range(stage.steps):
            if round_ > 0 and step == stage.delay:
                before, alpha = plan[round_ - 1]
                assert alpha is not None
                loop.merge(before, 0.75 * taken[round_ - 1], alpha)
            loop.move_to(round_, step)
            loop.step()
        start, end = stage.layout.fragment_span(fragment)
        assert torch.equal(taken[round_], loop.params[start:end]), f"round {round_}"


async def both_calls_hear_of_its_death_and_it_starts_again(stage: Stage) -> None:
    work = await stage.work(0, 2, hold=False)
    dead = [
        asyncio.create_task(stage.apply(work, stage.constant(0, 0.5), NEVER)),
        asyncio.create_task(stage.work(1, 10**9, hold=False)),
    ]
    await stage.until_steps(work.processed // stage.tokens + 2)
    stage.kill()
    for call in dead:
        with pytest.raises(TrainerDied, match="SIGKILL"):
            await call
    with pytest.raises(TrainerDied):
        await stage.work(0, 1, hold=True)
    steps, base = stage.counted()
    assert steps >= work.processed // stage.tokens + 2
    assert base[0] < work.processed, "it was not merged"
    await stage.trainer.start(stage.first, stage.round, None)
    assert stage.counted() == (steps, (steps * stage.tokens,) * 2)
    again = await stage.work(0, 2, hold=True)
    assert (again.steps, again.processed) == (2, (steps + 2) * stage.tokens)


async def a_save_with_a_snapshot_out_goes_on_from_the_old_base(stage: Stage) -> None:
    """The result is lost with the process; the work is still outstanding."""
    _, base = stage.counted()
    first = await stage.work(0, 3, hold=False)
    second = await stage.work(1, 4, hold=True)
    assert await stage.trainer.save(stage.folder) == second.processed
    stage.kill()
    await stage.trainer.start(stage.first, 0, stage.folder)
    assert stage.counted()[1] == base
    third = await stage.work(0, 2, hold=True)
    assert third.processed == second.processed + 2 * stage.tokens
    assert third.tokens == third.processed - base[0] == third.steps * stage.tokens
    assert third.tokens > first.tokens
    await stage.apply(third, stage.constant(0, 0.5))
    assert (await stage.work(0, 1, hold=True)).steps == 1


# -- trainers ----------------------------------------------------------------------------------------------------------


def fake_stage(folder: Path) -> Stage:
    layout, clock = Layout((TensorSpec("a", (12,)), TensorSpec("b", (5,))), ((0, 1), (1, 2))), VirtualClock(skew_s=3.0)
    trainer = FakeTrainer(layout, clock, step_seconds=STEP_S, tokens_per_step=10, seed=1)
    return Stage(trainer, clock, layout, torch.zeros(17), 10, folder)


def tiny_stage(folder: Path) -> Stage:
    layout, clock = cut(tiny_model.TENSORS, fragments=2, pattern="strided"), VirtualClock()
    trainer = tiny_model.TinyTrainer(layout, clock, step_seconds=STEP_S, seed=3, data="a")
    first = tiny_model.first_params(3, layout)
    stage = Stage(trainer, clock, layout, first, tiny_model.BATCH, folder)
    stage.straight = lambda: tiny_model.TinyLoop(layout, first, seed=3, data="a")
    return stage


def real_stage(folder: Path) -> Stage:
    data = folder / "data"
    data.mkdir()
    (data / "a.txt").write_bytes((b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    layout = cut(layout_of(MODEL).tensors, fragments=2, pattern="strided")
    steps, delay = 100, 70
    train = TrainSection(context=16, batch=2, total_rounds=100, eval_windows=8)
    digest = load_corpus(DataSection(kind="text"), str(data), train.context).digest
    config = TrainerConfig(
        model=MODEL,
        data=DataSection(kind="text", digest=digest),
        train=train,
        data_dir=str(data),
        sync_every=2 * steps,
        seed=1,
        peer_id="a",
        device="cpu",
    )
    first = first_params(MODEL, 1, layout)
    stage = Stage(TrainerClient(folder, layout, config), RunClock(), layout, first, 32, folder, steps, delay)
    corpus = load_corpus(config.data, str(data), train.context)
    stage.straight = lambda: InnerLoop(config, layout, choose_device("cpu"), corpus, first)
    return stage


def play(make: Callable[[Path], Stage], folder: Path, scenes: tuple[Scene, ...], run: Callable[[Any], None]) -> None:
    async def life() -> None:
        stage = make(folder)
        async with asyncio.timeout(None if stage.exact else PATIENCE_S):
            with pytest.raises(TrainerDied, match="never started"):
                await stage.trainer.evaluate(stage.first)
            info = await stage.trainer.start(stage.first, 0, None)
            assert info.tokens_per_step == stage.tokens
            try:
                for scene in scenes:
                    began = time.perf_counter()
                    await scene(stage)
                    await stage.settle()
                    print(f"{scene.__name__}: {time.perf_counter() - began:.2f} s")
            finally:
                await stage.trainer.stop()
                await stage.trainer.stop()

    run(life())


VIRTUAL = [pytest.param(fake_stage, id="fake"), pytest.param(tiny_stage, id="tiny")]
DEATHS: tuple[Scene, ...] = (
    both_calls_hear_of_its_death_and_it_starts_again,
    a_save_with_a_snapshot_out_goes_on_from_the_old_base,
)


@pytest.mark.parametrize("scene", [*SCENES, *DEATHS], ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("make", VIRTUAL)
def test_in_virtual_time(make: Callable[[Path], Stage], scene: Scene, tmp_path: Path) -> None:
    play(make, tmp_path, (scene,), run_virtual)


@pytest.mark.parametrize("make", VIRTUAL)
def test_one_life_in_virtual_time(make: Callable[[Path], Stage], tmp_path: Path) -> None:
    play(make, tmp_path, (*SCENES, *DEATHS, *SCENES), run_virtual)


def test_the_tiny_trainer_steps_as_a_straight_loop_does(tmp_path: Path) -> None:
    play(tiny_stage, tmp_path, (the_path_is_that_of_a_straight_loop,), run_virtual)


@pytest.mark.processes
@pytest.mark.parametrize("scenes", [(*SCENES[:4], *DEATHS[1:]), *nightly([(*SCENES, *DEATHS)])], ids=len)
def test_a_real_process(scenes: tuple[Scene, ...], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process: sums in the same order
    try:
        play(real_stage, tmp_path, (the_path_is_that_of_a_straight_loop, *scenes), asyncio.run)
    finally:
        torch.set_num_threads(threads)
