"""The base class of trainers in virtual time. They count tokens and merge at step boundaries as the real trainer does,
but no real time passes. `peer.lab.sim.fake_trainer` has no model, `peer.lab.sim.tiny_model` has one that learns."""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file

from peer.aio.tasks import race
from peer.errors import TrainerDied
from peer.lab.sim.probing import probe_losses, state_losses
from peer.lab.sim.trainer_orders import ResultArrival, WorkGoal, pending
from peer.outer.arithmetic import merge_
from peer.ports.clock import Clock
from peer.ports.trainer import AT_ONCE, Counters, Evaluation, Merge, ProbeTerms, TrainerInfo, WorkRequest, WorkSnapshot
from peer.protocol.messages import RoundKey
from peer.protocol.model.layout import Layout
from peer.protocol.pair.probe_verdict import ProbeLosses
from peer.protocol.policy.donors import StateLosses
from peer.protocol.schedule import margin
from peer.trainer.accounting import WorkAccount, WorkTally

T = TypeVar("T")

SLOP = 1e-3
"""Share of a step by which sums of floats may be off."""
TENSORS, PLACE = "virtual.safetensors", "virtual.json"


class VirtualTrainer(ABC):
    """The `Trainer` port on any clock. `kill` ends it as a killed process ends, and its counters survive.

    Every step takes the same time, so the boundary of each snapshot and merge is known when it is requested. Steps,
    snapshots and merges are carried out later, in their order, when a caller looks at the trainer (`_catch_up`). A call
    thus costs one timer, however many steps it covers.

    step_seconds: duration of an inner step. tokens_per_step: tokens counted for each step."""

    kind = "virtual"

    def __init__(self, layout: Layout, clock: Clock, *, step_seconds: float, tokens_per_step: int) -> None:
        self._layout = layout
        self._clock = clock
        self._step_seconds = step_seconds
        self._tokens_per_step = tokens_per_step
        self._dead: asyncio.Future[None] | None = None
        self._cause = "never started"
        self._began: tuple[float, int] | None = None
        self._held_since: float | None = None
        self._goal: WorkGoal | None = None
        self._arrivals: list[ResultArrival] = []
        self._awaited: dict[int, int] = {}
        """Fragment -> the step count at which the trainer waits for the fragment's result."""
        self._freed = asyncio.Event()
        self._account = WorkAccount(len(layout.fragments))
        self._slots = torch.full((layout.elements,), math.nan)
        """One snapshot of each fragment, as in the arena: the next snapshot of a fragment overwrites the last."""
        self._tokens = self._steps = 0
        self._base = [0] * len(layout.fragments)
        self._training = self._waiting = 0.0
        self.round = 0
        self.step_in_round = 0
        self.lr_scales: list[float] = []
        """The learning rate scale of each `work` request so far."""

    # -- one step ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, params: torch.Tensor) -> None:
        """Restart from these params (flat fp32) with a fresh inner optimizer."""

    @abstractmethod
    def _params(self) -> torch.Tensor:
        """Return the live params, flat fp32. Merges write to this tensor."""

    @abstractmethod
    def _train(self, steps: int) -> float:
        """Take `steps` steps, from `step_in_round` of `round` on. Return the sum of their losses."""

    @abstractmethod
    def _measure(self, params: torch.Tensor) -> Evaluation: ...

    def _window_losses(self, params: torch.Tensor, seed: int) -> tuple[float, ...]:
        """Return the loss of each window that the seed draws from the run's data. Empty: the trainer has no model."""
        return ()

    def _moments(self) -> dict[str, torch.Tensor]:
        """Return the inner optimizer's tensors, for `save`. `_resume` copies saved values into them."""
        return {}

    def _scale_lr(self, scale: float) -> None:
        self.lr_scales.append(scale)

    # -- the interface -----------------------------------------------------------------------------------------------

    def kill(self, cause: str = "killed by SIGKILL") -> None:
        if self._dead is None or self._dead.done():
            return
        self._catch_up()
        self._cause, self._began, self._goal = cause, None, None
        self._arrivals.clear()
        self._awaited.clear()
        self._dead.set_result(None)

    async def start(self, outer_params: torch.Tensor, round_: int, resume: Path | None) -> TrainerInfo:
        await self.stop()
        self._dead = pending()
        self._reset(outer_params)
        self._account = WorkAccount(len(self._base))
        self._held_since = None
        self.round, self.step_in_round = round_, 0
        if resume is None or not self._resume(resume):
            self._base = [self._tokens] * len(self._base)
        return TrainerInfo(self.kind, "a simulation has no device", self._tokens_per_step)

    async def work(self, request: WorkRequest) -> WorkSnapshot:
        """Train up to the requested boundary and return the snapshot. If cancelled, the trainer stops, as by `hold`."""
        self._assert_alive()
        self._catch_up()
        assert self._goal is None, "one work at a time"
        self._scale_lr(request.lr_scale)
        self._begin_steps()
        if request.key.round > self.round:
            self.round, self.step_in_round = request.key.round, 0
        goal = self._goal = WorkGoal(request, self._boundary_of(request))
        try:
            return await self._at_boundary(goal.at, goal.done)
        except asyncio.CancelledError:
            if self._goal is goal:
                self.hold()
            raise

    async def apply(
        self, key: RoundKey, outer_params: torch.Tensor, base: int, next_round: int, merge: Merge = AT_ONCE
    ) -> None:
        """Wait for the boundary of this result's merge. If cancelled, the merge still happens there."""
        self._assert_alive()
        self._catch_up()
        at = self._boundary_of_merge(key.fragment, base, merge)
        arrival = ResultArrival(key, outer_params.clone(), base, next_round, merge, at)
        self._arrivals.append(arrival)
        await self._at_boundary(at, arrival.done)

    def release(self, key: RoundKey) -> None:
        self._catch_up()
        self._end_wait(key.fragment)

    def hold(self) -> None:
        self._catch_up()
        self._goal, self._began = None, None
        self._merge_all()

    async def evaluate(self, outer_params: torch.Tensor | None) -> Evaluation:
        await self._yield_to_loop()
        self._catch_up()
        return self._measure(self._params() if outer_params is None else outer_params)

    async def probe(
        self, key: RoundKey, outer_params: torch.Tensor, partner: torch.Tensor, terms: ProbeTerms
    ) -> ProbeLosses | str:
        await self._yield_to_loop()
        self._catch_up()
        span = self._layout.fragment_span(key.fragment)
        own = self._slots[slice(*span)].clone()
        return probe_losses(self._params().clone(), span, (outer_params, own, partner), terms, self._window_losses)

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        await asyncio.sleep(0)
        return state_losses(self._window_losses(params, seed))

    async def save(self, folder: Path) -> int:
        await self._yield_to_loop()
        self._catch_up()
        place = {
            "tokens": self._tokens,
            "round": self.round,
            "step": self.step_in_round,
            "since_snapshot": self._account.since_snapshot,
            "tallies": [asdict(tally) for tally in self._account.tallies],
        }
        save_file({"params": self._params(), **self._moments()}, folder / TENSORS)
        (folder / PLACE).write_text(json.dumps(place))
        return self._tokens

    def counters(self) -> Counters:
        self._catch_up()
        return Counters(self._tokens, self._steps, tuple(self._base), self._training, self._waiting)

    async def stop(self) -> None:
        self.kill("stopped")

    def _assert_alive(self) -> None:
        if self._dead is None or self._dead.done():
            raise TrainerDied(self._cause)

    async def _yield_to_loop(self) -> None:
        self._assert_alive()
        await asyncio.sleep(0)
        self._assert_alive()

    def _resume(self, folder: Path) -> bool:
        """Restore the optimizer's moments, and also params and place if no step was counted after the save. Return
        whether everything was restored."""
        place, tensors = json.loads((folder / PLACE).read_text()), load_file(folder / TENSORS)
        for name, moment in self._moments().items():
            moment.copy_(tensors[name])
        if place["tokens"] != self._tokens:
            return False
        self._params().copy_(tensors["params"])
        self.round, self.step_in_round = place["round"], place["step"]
        self._account.resume(place["since_snapshot"], [WorkTally(**tally) for tally in place["tallies"]])
        return True

    # -- the boundary of a snapshot or merge -------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the time of the uncorrected local clock."""
        return self._clock.raw(self._clock.now())

    def _moment(self, at: int) -> float:
        """Return the time at which the trainer has taken `at` steps in all. Now, if it is not stepping."""
        if self._began is None:
            return self._now()
        since, steps = self._began
        return since + (at - steps) * self._step_seconds

    def _first_after(self, moment: float) -> int:
        """Return the first step boundary, as a number of steps in all, that is not before this time."""
        assert self._began is not None
        since, steps = self._began
        reached = min(steps + math.ceil((moment - since) / self._step_seconds - SLOP), self._limit())
        return max(self._steps, int(reached))

    def _limit(self) -> float:
        """Return the step count that the trainer cannot pass before a result arrives. Infinite: it waits for none."""
        return min(self._awaited.values(), default=math.inf)

    def _end_wait(self, fragment: int) -> None:
        """Stop waiting for a fragment's result, because it arrived or will not come."""
        now, before = self._now(), self._limit()
        self._awaited.pop(fragment, None)
        if self._began is not None and before <= self._steps < self._limit():
            self._waiting += now - self._moment(self._steps)
            self._began = now, self._steps
        self._freed.set()

    def _begin_steps(self) -> None:
        """Start stepping from now on, if the trainer is at rest."""
        now = self._now()
        self._end_waiting(now)
        if self._began is None:
            self._began = now, self._steps

    def _boundary_of(self, request: WorkRequest) -> int:
        """Return the boundary of the requested snapshot: by its step count, or nearest to its time. If that has passed,
        the next one."""
        soonest = self._first_after(self._now())
        if request.until is not None:
            worked = self._account.tallies[request.key.fragment].steps > 0
            if not worked and margin(self._step_seconds, request.round_s, worked=False) == 0.0:
                soonest = max(soonest, self._steps + 1)  # a step longer than a round has to be begun all the same
            ahead = margin(self._step_seconds, request.round_s, worked=True)
            return max(soonest, self._first_after(request.until - ahead))
        assert request.steps is not None
        return max(soonest, self._steps - self._account.since_snapshot + request.steps)

    def _boundary_of_merge(self, fragment: int, base: int, merge: Merge) -> int:
        if self._began is None:
            return self._steps
        if merge.shift:
            return self._first_after(self._now())
        at = self._first_after(self._now() if merge.after is None else max(self._now(), merge.after))
        taken_at = self._steps - self._account.steps_since(fragment, base)
        return max(at, taken_at + (merge.after_steps or 0))

    # -- steps, snapshots and merges ---------------------------------------------------------------------------------

    async def _at_boundary(self, at: int, done: asyncio.Future[T]) -> T:
        """Sleep until the trainer has reached boundary `at` and `done` is set. Raises TrainerDied."""
        dead = self._dead
        assert dead is not None
        while not done.done():
            if dead.done():
                raise TrainerDied(self._cause)
            moment = self._moment(at)
            self._freed.clear()
            paused = self._began is not None and self._steps >= self._limit() and at > self._steps
            if paused:
                await race(dead, self._freed.wait())
            elif (delay := moment - self._now()) > 0:
                ends: set[asyncio.Future[Any]] = {dead, done}
                await asyncio.wait(ends, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)
            if not (done.done() or dead.done()):
                self._catch_up(0.0 if paused else moment)
        return done.result()

    def _catch_up(self, moment: float = 0.0) -> None:
        """Carry out, in order, all steps, snapshots and merges up to now. `moment`: now is at least this time, although
        the clock may still be a rounding error before it."""
        while self._began is not None:
            since, steps = self._began
            reached = int(
                min(steps + int((max(moment, self._now()) - since) / self._step_seconds + SLOP), self._limit())
            )
            following = min((arrival.at for arrival in self._arrivals), default=reached + 1)
            goal = self._goal
            if goal is not None and goal.at < following and goal.at <= reached:
                self._train_to(goal.at)
                self._snapshot(goal)
            elif following <= reached:
                self._train_to(following)
                self._merge_all(following)
            else:
                self._train_to(reached)
                return
        self._merge_all()

    def _train_to(self, at: int) -> None:
        steps = at - self._steps
        if steps <= 0:
            return
        losses, seconds = self._train(steps), steps * self._step_seconds
        self._account.add_work(WorkTally(steps, 0, losses, round(seconds * 1e9)))
        self._tokens += steps * self._tokens_per_step
        self._steps += steps
        self.step_in_round += steps
        self._training += seconds

    def _snapshot(self, goal: WorkGoal) -> None:
        key = goal.request.key
        start, end = self._layout.fragment_span(key.fragment)
        tally = self._account.snapshot(key.fragment, self._tokens)
        work = WorkSnapshot(
            key=key,
            params=self._slots[start:end].copy_(self._params()[start:end]),
            steps=tally.steps,
            tokens=self._tokens - self._base[key.fragment],
            processed=self._tokens,
            loss=tally.loss,
            seconds=tally.nanoseconds / 1e9,
        )
        self._goal = None
        if goal.request.hold:
            self._held_since, self._began = self._moment(goal.at), None
        else:
            self.round, self.step_in_round = key.round + 1, 0
            if goal.request.pause_after is not None:
                self._awaited[key.fragment] = goal.at + goal.request.pause_after
        if not goal.done.done():
            goal.done.set_result(work)

    def _merge_all(self, at: int | None = None) -> None:
        """Merge the results that are due at boundary `at`. None: all, because the trainer is at rest."""
        for arrival in list(self._arrivals):
            if at is None or arrival.at <= at:
                self._arrivals.remove(arrival)
                self._merge(arrival)

    def _merge(self, arrival: ResultArrival) -> None:
        fragment = arrival.key.fragment
        start, end = self._layout.fragment_span(fragment)
        if arrival.merge.shift:
            self._params()[start:end] += arrival.outer_params
            if not arrival.done.done():
                arrival.done.set_result(None)
            return
        merge_(self._params()[start:end], arrival.outer_params, arrival.merge.alpha)
        self._account.rebase(fragment, arrival.base)
        self._base[fragment] = arrival.base
        self._end_wait(fragment)
        if self.round < arrival.next_round:
            self._end_waiting(self._now())
            self.round, self.step_in_round = arrival.next_round, 0
        if not arrival.done.done():
            arrival.done.set_result(None)

    def _end_waiting(self, now: float) -> None:
        if self._held_since is not None:
            self._waiting += now - self._held_since
            self._held_since = None
