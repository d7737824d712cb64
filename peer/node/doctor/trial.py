"""Tries a few inner steps of the run's model in a child process, as the trainer does, including its fitting of the
micro-batch.

All parameters are zero, because neither time nor memory of a step depends on their values. Data that would have to be
fetched is replaced by Python's standard library."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from peer.errors import DataError, PeerError, TrainerDied, TrainerFailed
from peer.joining.artifacts import RunFiles
from peer.joining.trainer import trainer_config
from peer.node.doctor.finding import DoctorFinding, failure, fine, unchecked, warning
from peer.node.doctor.prediction import StepTrial
from peer.node.doctor.room import free_disk
from peer.observe.formatting import amount
from peer.ports.trainer import WorkRequest
from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.policy.fitness import of_steps
from peer.run.costs import cost_of
from peer.run.manifest import Manifest
from peer.run.model_layout import layout_for
from peer.run.options import PeerOptions
from peer.run.resolve import resolve
from peer.run.sections import CustomSection
from peer.trainer.client import TrainerClient
from peer.trainer.subprocess import TrainerSubprocess

MEASURED_STEPS = 3
"""Inner steps that are measured, as many as in `peer join`."""
WITHIN_S = 120.0
"""Time limit for the trainer's start and all steps, in seconds."""
LONG_STEP_S = 15.0
GUEST = PeerId("guest")


class StepTrialRun:
    """One trial. `folder`: a temporary folder for it alone. `early`: a trainer process that is already loading torch,
    or None."""

    def __init__(self, options: PeerOptions, folder: Path, early: TrainerSubprocess | None) -> None:
        self._options = options
        self._folder = folder
        self._early_trainer = early

    async def run(self, manifest: Manifest, files: RunFiles) -> tuple[StepTrial | None, DoctorFinding]:
        """Make the trial. Return its result, None if it failed, and the finding. Errors of the trainer are returned as
        findings."""
        if isinstance(manifest.model, CustomSection):
            return None, fine("training", "your own loop makes the steps: nothing of them is tried here")
        cost = cost_of(manifest.model, resolve(manifest.sync), files.tensors)
        free = free_disk(self._folder)
        if free is not None and free < cost.arena_bytes:
            need = f"{amount(cost.arena_bytes, 'bytes')} are needed at {self._folder}, {amount(free, 'bytes')} are free"
            return None, unchecked("training", need, "Set TMPDIR to a folder with room.")
        began = time.monotonic()
        try:
            async with asyncio.timeout(WITHIN_S):
                trial = await self._try(manifest, files, began)
        except TimeoutError:
            took = f"{MEASURED_STEPS} inner steps did not end within {WITHIN_S:.0f} s"
            return None, warning("training", took, "Join a run with a smaller model, or give it more --threads.")
        except TrainerDied as error:
            return None, failure("training", TrainerFailed(f"the trainer died: {error.cause}"))
        except PeerError as error:
            return None, failure("data" if isinstance(error, DataError) else "training", error)
        return trial, judged(trial, manifest)

    async def _try(self, manifest: Manifest, files: RunFiles, began: float) -> StepTrial:
        config = trainer_config(self._options, GUEST, manifest, files).with_data_here()
        layout = layout_for(manifest.model, resolve(manifest.sync), files.tensors)
        trainer = TrainerClient(self._folder, layout, config, self._early_trainer)
        try:
            await trainer.prepare()
            info = await trainer.start(trainer.outer_params, 0, None)
            prepared_s = time.monotonic() - began
            step_s = await self._step_s(trainer)
        finally:
            await trainer.stop()
        return StepTrial(
            device=info.device,
            micro_batch=info.micro_batch,
            reason=f"{info.device_reason}; {info.micro_batch_reason}",
            step_s=step_s,
            tokens_per_step=config.tokens_per_step,
            prepared_s=prepared_s,
        )

    async def _step_s(self, trainer: TrainerClient) -> float:
        """Return the seconds from one inner step to the next, including the rests that the user's shares require.

        The first step warms up, and is used only if steps are very long."""
        worked_before, steps_before = 0.0, 0
        for steps in (1, MEASURED_STEPS):
            began = time.monotonic()
            await trainer.work(WorkRequest(RoundKey(0, 0), steps=steps, until=None, hold=True))
            wall_s, counters = (time.monotonic() - began) / steps, trainer.counters()
            worked_s = (counters.seconds_training - worked_before) / (counters.steps - steps_before)
            worked_before, steps_before = counters.seconds_training, counters.steps
            if worked_s > LONG_STEP_S:
                break
        return max(worked_s / self._options.speed, wall_s, self._options.step_seconds)


def judged(trial: StepTrial, manifest: Manifest) -> DoctorFinding:
    """Judge this machine's speed for the rounds of the run."""
    method = resolve(manifest.sync)
    told = f"{trial.tokens_per_step / trial.step_s:,.0f} tokens a second on {trial.reason}"
    if method.clock == "seconds" and (slow := of_steps(trial.step_s, method.round_length, manifest.rounds)) is not None:
        return warning("training", f"{told}; {slow.found}", slow.fix)
    return fine("training", told)
