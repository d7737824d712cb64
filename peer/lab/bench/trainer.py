"""Measures how fast this machine trains a run's model: in a child process, over the same interface and with the same
settings as in the daemon."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peer.clock.monotonic import boottime
from peer.errors import TrainerDied, TrainerFailed, UsageError
from peer.joining.artifacts import RunFiles
from peer.joining.preflight import check_training_loop
from peer.lab.bench.machine import cpu_seconds, facts
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.ports.trainer import WorkRequest
from peer.protocol.messages import RoundKey
from peer.run.memory import activation_bytes, free_bytes
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.run.schema import Manifest
from peer.run.sections import LlamaSection
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.user_folders import temporary_folder

BURSTS = 5
"""Number of parts in which the steps are done. Rates are medians over them."""
SETTLED, SETTLING_S = 0.05, 30.0
"""The trainer counts as warm when the step time changes by at most the share `SETTLED` from one burst to the next, or
after `SETTLING_S` seconds."""
WARM_STEPS = 5
DEADLINE_S = 600.0
SQUARE, PRODUCTS = 768, 9


@dataclass(frozen=True, slots=True)
class Burst:
    """The measurement of some inner steps: their number, seconds inside the steps, wall-clock seconds in all, and the
    trainer's processor seconds."""

    steps: int
    inside_s: float
    wall_s: float
    cpu_s: float

    @property
    def step_s(self) -> float:
        return self.inside_s / self.steps


def measure(
    manifest: Manifest,
    steps: int,
    *,
    threads: int = 1,
    device: str = "auto",
    data_dir: str | None = None,
    files: RunFiles | None = None,
) -> dict[str, Any]:
    """Measure `steps` inner steps of a warm trainer. Return `tokens_per_s`, `step_s` (median), `step_s_slowest` (of the
    bursts), `utilization`, `cores`, the device and the facts of the machine.

    `utilization` is the model's floating point operations (6 per parameter and token) divided by those that products of
    square fp32 matrices reach here with the same number of threads; None on an accelerator. `cores`: the trainer's
    processor seconds per second; None if the system does not report them. `files`: the run's files, which a foreign
    model needs.

    Raises UsageError, TrainerFailed, and the trainer's own refusals: DataError, ManifestError, MachineTooSmall."""
    if not BURSTS <= steps <= 1_000_000:
        raise UsageError(f"--steps {steps} cannot be measured", f"Give {BURSTS} to 1000000.")
    files = files or RunFiles()
    check_training_loop(manifest, attached=False)
    if not isinstance(manifest.model, LlamaSection) and (files.config is None or files.tensors is None):
        fix = "Name its manifest, which has the run's files beside it, or run `peer doctor TICKET`."
        raise UsageError("a model of transformers is measured with its run's files only", fix)
    given = {"threads": threads, "device": device, "data_dir": data_dir}
    given |= {"activation_bytes": activation_bytes(manifest, free_bytes())}
    given |= {"tokenizer_file": _text(files.tokenizer), "config_file": _text(files.config)}
    config = TrainerConfig.of(manifest, "bench", **given).with_data_here()
    with temporary_folder("peer-bench-") as folder:
        try:
            info, bursts = asyncio.run(_train(manifest, config, files, Path(folder), steps))
        except TrainerDied as error:
            raise TrainerFailed(f"the trainer died: {error.cause}") from error
        except TimeoutError as error:
            raise TrainerFailed(f"the trainer did not get through within {DEADLINE_S:.0f} s") from error
    return {**_rates(manifest, config, bursts, info.device), **_place(info, threads), **facts()}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


async def _train(
    manifest: Manifest, config: TrainerConfig, files: RunFiles, folder: Path, steps: int
) -> tuple[Any, list[Burst]]:
    layout = layout_for(manifest.model, resolve(manifest.sync), files.tensors)
    seeded = manifest.model_copy(update={"init": ""})  # the weights do not affect the time of a step
    first = FirstFiles(files.tensors, files.config, scratch=folder)
    outer = await asyncio.to_thread(first_state, seeded, layout, None, lambda line: None, first)
    trainer = TrainerClient(folder, layout, config)
    try:
        async with asyncio.timeout(DEADLINE_S):
            info = await trainer.start(outer.params, 0, None)
            await _warm(trainer)
            return info, [await burst(trainer, part) for part in _parts(steps)]
    finally:
        await trainer.stop()


def _parts(steps: int) -> list[int]:
    return [(steps * (number + 1)) // BURSTS - (steps * number) // BURSTS for number in range(BURSTS)]


async def _warm(trainer: TrainerClient) -> None:
    until, before = boottime() + SETTLING_S, math.inf
    while boottime() < until:
        now = (await burst(trainer, WARM_STEPS)).step_s
        if abs(now - before) <= SETTLED * before < math.inf:
            return
        before = now


async def burst(trainer: TrainerClient, steps: int) -> Burst:
    """Take `steps` inner steps and a snapshot of the first fragment. Raises TrainerDied."""
    pid, before, began = trainer.pid, trainer.counters(), boottime()
    assert pid is not None
    cpu = cpu_seconds(pid)
    await trainer.work(WorkRequest(RoundKey(0, 0), steps=steps, until=None, hold=True))
    wall, after, used = boottime() - began, trainer.counters(), cpu_seconds(pid)
    done = after.steps - before.steps
    cpu_s = math.nan if cpu is None or used is None else used - cpu
    return Burst(done, after.seconds_training - before.seconds_training, wall, cpu_s)


def _rates(manifest: Manifest, config: TrainerConfig, bursts: list[Burst], device: str) -> dict[str, Any]:
    step_s = statistics.median(burst.step_s for burst in bursts)
    rate = statistics.median(config.tokens_per_step * burst.steps / burst.wall_s for burst in bursts)
    cores = statistics.median(burst.cpu_s / burst.wall_s for burst in bursts)
    peak = flops(config.threads) if device == "cpu" else math.nan
    utilization = 6 * manifest.model.parameters * rate / peak
    return {
        "tokens_per_s": rate,
        "step_s": step_s,
        "step_s_slowest": max(burst.step_s for burst in bursts),
        "utilization": None if math.isnan(utilization) else utilization,
        "cores": None if math.isnan(cores) else cores,
        "steps": sum(burst.steps for burst in bursts),
        "tokens_per_step": config.tokens_per_step,
        "parameters": manifest.model.parameters,
    }


def _place(info: Any, threads: int) -> dict[str, Any]:
    reasons = {"device_reason": info.device_reason, "micro_batch": info.micro_batch}
    return {"device": info.device, "threads": threads, **reasons}


def flops(threads: int) -> float:
    """Return the median floating point operations per second of several products of square fp32 matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one, into = torch.randn(SQUARE, SQUARE), torch.zeros(SQUARE, SQUARE)
        took = []
        for _ in range(PRODUCTS + 1):
            began = time.perf_counter()
            torch.mm(one, one, out=into)
            took.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return float(2 * SQUARE**3 / statistics.median(took[1:]))
