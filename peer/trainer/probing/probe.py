"""Computes the losses of a probe in the trainer process, with one fragment of the model replaced.

A probe runs at a step boundary. It only reads the live params, so nothing has to be restored however it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.clock.monotonic import boottime
from peer.outer.arithmetic import step_along_
from peer.protocol.model.layout import Layout
from peer.trainer.arena import Arena
from peer.trainer.batches import Windows
from peer.trainer.config import TrainerConfig
from peer.trainer.data.tracked import TrackedData
from peer.trainer.evaluation import RunNetwork, weights_of
from peer.trainer.loss import window_losses
from peer.trainer.models.flat import fragment_views, views_of
from peer.trainer.probing.files import AWAITED, probe_file
from peer.trainer.probing.run_sample import RunSample
from peer.trainer.probing.windows import COMMON, HOLDOUT, USUAL_WINDOWS, WindowForm, common_text, draw

CANDIDATES = 4
"""Number of values that `candidates` yields."""


def candidates(layout: Layout, folder: Path, arena: Arena, message: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in `ProbeLosses`, values of the probed fragment) for all that a probe compares.

    Values are flat fp32 on the CPU and valid until the next ones are yielded. `message`: the daemon's order."""
    fragment = message["fragment"]
    start, end = layout.fragment_span(fragment)
    given = torch.from_numpy(np.memmap(probe_file(folder, fragment), "<f4", "c"))
    partner = given[: end - start]
    base = arena.in_slot(fragment) if message["in_place"] else given[end - start :]
    yield "base", base
    own = arena.out_slot(fragment).clone()
    step_along_(own, base, message["share"])
    yield "own", own
    yield "partner", partner
    yield "mixed", own.lerp_(partner, message["taken"] / 2)


class Prober:
    """Answers the daemon's orders `probe` and `weigh` with losses of the run's network on the run's data."""

    def __init__(
        self,
        config: TrainerConfig,
        layout: Layout,
        folder: Path,
        arena: Arena,
        run_network: RunNetwork,
        tracked: TrackedData,
    ) -> None:
        self._config = config
        self._layout = layout
        self._folder = folder
        self._arena = arena
        self._run_network = run_network
        self._data = tracked.data
        self._form = WindowForm.affordable(config.tokens_per_step, config.train.context)
        self._shards = tracked.shards
        self._sample = None if tracked.shards is None else RunSample(tracked.shards, self._form.length)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Execute the order `probe`: return per candidate the loss of each window, or the reason why there are none."""
        until = boottime() + message["within_s"]
        losses = self._losses(message, lambda: boottime() > until)
        return {"ok": {"why": losses} if isinstance(losses, str) else losses}

    def weigh(self, message: dict[str, Any]) -> dict[str, Any]:
        """Execute the order `weigh`: return the loss of each window for the whole model in the arena, or the reason why
        there are none.

        The daemon sends this order before training, when no training shard has arrived yet. With data of kind `tokens`
        the windows are therefore taken from the hold-out, which is requested if it is missing."""
        until = boottime() + message["within_s"]
        windows, source = self._first_windows(message["seed"])
        if isinstance(windows, str):
            return {"ok": {"why": windows}}
        network, device = self._run_network.network, self._run_network.device
        weights = weights_of(network, views_of(self._arena.inn.to(device), self._layout))
        losses = window_losses(self._run_network.token_loss, windows, weights, lambda: boottime() > until)
        if losses is None:
            return {"ok": {"why": "it took too long"}}
        return {"ok": {"windows": losses, "guess": math.log(network.vocab_size), "source": source}}

    def _first_windows(self, seed: int) -> tuple[Windows | str, str]:
        form = WindowForm(max(self._form.count, USUAL_WINDOWS), self._form.length)
        if self._shards is None:
            text = common_text(self._config.data, self._data)
            return text if isinstance(text, str) else draw(text, seed=seed, form=form), COMMON
        if self._shards.holdout is None:
            self._shards.request([])
            return AWAITED if self._shards.holdout_awaited else "nobody gives the hold-out", HOLDOUT
        return draw(self._shards.holdout, seed=seed, form=form), HOLDOUT

    def check_borrowed(self) -> None:
        """Collect windows of the borrowed shard if it has arrived, or note that it is unavailable."""
        if self._sample is not None:
            self._sample.check_borrowed()

    def _windows(self, seed: int) -> tuple[Windows | str, str]:
        """Return (windows of a probe, or the reason why there are none; description of their source for a person)."""
        if self._sample is not None:
            return self._sample.draw(seed, self._form.count), self._sample.description
        text = common_text(self._config.data, self._data)
        return text if isinstance(text, str) else draw(text, seed=seed, form=self._form), COMMON

    def _losses(self, message: dict[str, Any], late: Callable[[], bool]) -> dict[str, Any] | str:
        windows, source = self._windows(message["seed"])
        if isinstance(windows, str):
            return windows
        self._run_network.forget_gradients()  # the probe needs their memory
        found: dict[str, Any] = {"guess": math.log(self._run_network.network.vocab_size), "source": source}
        for name, values in candidates(self._layout, self._folder, self._arena, message):
            found[name] = self._with(message["fragment"], values, windows, late)
        return "it took too long" if None in found.values() else found

    def _with(self, fragment: int, values: Tensor, windows: Windows, late: Callable[[], bool]) -> list[float] | None:
        """Return the loss of each window with `values` in the place of the fragment. None: the time was up."""
        replaced = fragment_views(values.to(self._run_network.device), self._layout, fragment)
        weights = {**self._run_network.live_weights(), **weights_of(self._run_network.network, replaced)}
        return window_losses(self._run_network.token_loss, windows, weights, late)
