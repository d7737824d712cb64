"""A trainer without a model: steps take time on the clock it is given and move the parameters by seeded noise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import torch

from peer.daemon.interfaces import Clock, Counters, Evaluation, TrainerInfo, Work, WorkRequest
from peer.errors import TrainerDied
from peer.protocol.layout import Layout
from peer.protocol.messages import RoundKey

T = TypeVar("T")


class FakeTrainer:
    """The `Trainer` interface for simulations. `kill` makes it die as a killed process does; its counters survive.

    step_seconds: time of an inner step. tokens_per_step: what a step counts. seed: of the noise."""

    def __init__(
        self, layout: Layout, clock: Clock, *, step_seconds: float, tokens_per_step: int = 64, seed: int = 0
    ) -> None:
        self._layout = layout
        self._clock = clock
        self._step_seconds = step_seconds
        self._tokens_per_step = tokens_per_step
        self._noise = torch.Generator().manual_seed(seed)
        self._params = torch.empty(0)
        self._dead: asyncio.Future[None] | None = None
        self._cause = "never started"
        self._steps_in_round = 0
        self._steps_since_base = 0
        self._tokens = 0
        self._steps = 0
        self._base = [0] * len(layout.fragments)
        self._training = 0.0
        self._waiting = 0.0
        self._held_since: float | None = None
        self.lr_scales: list[float] = []
        """Of every request so far."""

    def kill(self, cause: str = "killed by SIGKILL") -> None:
        self._cause = cause
        if self._dead is not None and not self._dead.done():
            self._dead.set_result(None)

    async def start(self, outer_params: torch.Tensor, round_: int, resume: Path | None) -> TrainerInfo:
        self._params = outer_params.clone()
        self._dead = asyncio.get_running_loop().create_future()
        self._base = [self._tokens] * len(self._base)
        self._steps_since_base = self._steps_in_round = 0
        self._held_since = None
        return TrainerInfo("fake", "a simulation has no device", self._tokens_per_step)

    async def work(self, request: WorkRequest) -> Work:
        self.lr_scales.append(request.lr_scale)
        if self._held_since is not None:
            self._waiting += self._clock.now() - self._held_since
            self._held_since = None
        await self._train(self._steps_wanted(request))
        if request.until is not None:
            await self._alive(self._clock.sleep(request.until - self._clock.raw(self._clock.now())))
        if request.hold:
            self._held_since = self._clock.now()
        start, end = self._layout.fragment_span(request.key.fragment)
        return Work(
            key=request.key,
            params=self._params[start:end].clone(),
            steps=self._steps_since_base,
            tokens=self._tokens - self._base[request.key.fragment],
            processed=self._tokens,
            loss=math.exp(-self._steps / 1000),
            seconds=self._steps_since_base * self._step_seconds,
        )

    async def apply(self, key: RoundKey, outer_params: torch.Tensor, base: int, next_round: int) -> None:
        await self._alive(asyncio.sleep(0))
        start, end = self._layout.fragment_span(key.fragment)
        self._params[start:end] = outer_params
        self._base[key.fragment] = base
        self._steps_since_base = self._steps_in_round = 0

    async def evaluate(self, outer_params: torch.Tensor) -> Evaluation:
        await self._alive(asyncio.sleep(0))
        loss = float(outer_params.square().mean())
        return Evaluation(loss, loss / math.log(2), 1)

    async def save(self, folder: Path) -> None:
        await self._alive(asyncio.sleep(0))

    def counters(self) -> Counters:
        return Counters(self._tokens, self._steps, tuple(self._base), self._training, self._waiting)

    async def stop(self) -> None:
        self.kill("stopped")

    def _steps_wanted(self, request: WorkRequest) -> int:
        if request.until is None:
            assert request.steps is not None
            return request.steps - self._steps_in_round
        left = request.until - self._clock.raw(self._clock.now())
        return max(0, round(left / self._step_seconds))

    async def _train(self, steps: int) -> None:
        """All steps in one sleep; a death in between leaves those that were whole."""
        began = self._clock.now()
        try:
            await self._alive(self._clock.sleep(steps * self._step_seconds))
        except TrainerDied:
            self._count(min(steps, int((self._clock.now() - began) / self._step_seconds)))
            raise
        self._count(steps)

    def _count(self, steps: int) -> None:
        self._params += 0.01 * steps**0.5 * torch.randn(self._params.shape, generator=self._noise)
        self._tokens += steps * self._tokens_per_step
        self._steps += steps
        self._steps_in_round += steps
        self._steps_since_base += steps
        self._training += steps * self._step_seconds

    async def _alive(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result, or TrainerDied when the process is gone first."""
        if self._dead is None or self._dead.done():
            call.close()
            raise TrainerDied(self._cause)
        running = asyncio.ensure_future(call)
        try:
            both: set[asyncio.Future[Any]] = {running, self._dead}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise TrainerDied(self._cause)
            return running.result()
        finally:
            running.cancel()
