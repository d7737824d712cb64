"""Measures a peer's join: the duration of each phase from the command to the first inner step, and whether machine and
line are fit for the run. The user, the journal and `peer status` receive the result.

Time spent waiting for the user (an answer, or a condition of theirs) is reported apart and belongs to no phase."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.clock.phases import PhaseTimer
from peer.errors import MachineTooSlow
from peer.joining.resume import JoinedState, StateTransfer
from peer.methods.codec_specs import KINDS
from peer.methods.method import Method
from peer.observe import events
from peer.observe.formatting import amount
from peer.observe.status.value import MachineStatus
from peer.ports.trainer import TrainerInfo, TrainerProgress
from peer.protocol.policy.fitness import FitnessFinding, of_link, of_steps
from peer.protocol.policy.upload_quota import UploadLimits, quota_excess
from peer.run.costs import cost_of
from peer.run.load import codec_refusal, line_load, upload_need
from peer.run.manifest import Manifest
from peer.run.options import PeerOptions

LOOK_S = 0.1
MEASURED_STEPS = 3
"""Inner steps whose median time is taken as the speed of this machine."""
TOLD_BYTES = 1_000_000
"""Smallest transfer, in bytes, from which the speed of the line is judged."""
TOLD_WAIT_S = 0.1
"""Shortest wait for the user, in seconds, that is reported."""
PHASES = (
    *("program", "network", "manifest", "terms", "files", "amendments", "state", "clock"),
    *("trainer", "others", "first_evaluation", "first_step"),
)
"""Phases of a join, in order."""
BESIDE = ("torch_import", "waiting_for_the_state", "data", "model")
"""Phases of the trainer's process, which run in parallel."""


class JoinReport:
    """Collects how this peer joined: the duration of each phase, and the findings on the fitness of the machine. The
    volunteer sees it when the first step is done, and `peer status` at any time.

    `phase_timer`: has been running since the command began."""

    def __init__(
        self, phase_timer: PhaseTimer, emit: Callable[[events.Event], None], say: Callable[[str], None]
    ) -> None:
        self._phase_timer = phase_timer
        self._emit = emit
        self._say = say
        self._details: dict[str, str] = {}
        self._trainer: dict[str, float] = {}
        self._micro_batch = ""
        self._joined = ""
        self._unfit: list[FitnessFinding] = []

    def end_phase(self, phase: str, detail: str = "") -> None:
        """End the current phase under this name. `detail`: a fact about it, for a person."""
        self._phase_timer.end(phase)
        self._details[phase] = detail

    def person_answered(self) -> None:
        """Exclude the time since the last phase: it was spent waiting for the user."""
        self._phase_timer.skip()

    def on_event(self, event: events.Event, t: float) -> None:
        """End the phases that the round loop completes. A journal listener. `t`: time of the event."""
        if self._joined:
            return
        if isinstance(event, events.TrainingBegan):
            self.end_phase("others")
        elif isinstance(event, events.Evaluated):
            self.end_phase("first evaluation")

    def state_obtained(self, state: JoinedState) -> None:
        """End the phase in which the state was fetched or resumed."""
        self.end_phase("state", "own checkpoint" if state.transfer is None else _fetched(state.transfer))

    def trainer_ready(self, info: TrainerInfo) -> None:
        """End the trainer's start, and report its micro-batch."""
        self._trainer = dict(info.seconds)
        self.end_phase("trainer", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in info.seconds.items()))
        self._micro_batch = info.micro_batch_reason
        if info.micro_batch:
            self._say(f"micro-batch: {info.micro_batch_reason}")
            self._emit(events.MicroBatch(windows=info.micro_batch, reason=info.micro_batch_reason))

    def report(self) -> MachineStatus:
        """Return the join for `peer status`."""
        return MachineStatus(
            joined_in_s=round(self._phase_timer.total, 2) if self._joined else None,
            waited_for_you_s=round(self._phase_timer.skipped, 2),
            phases_s={name: round(seconds, 3) for name, seconds in self._phase_timer.took.items()},
            micro_batch=self._micro_batch,
            unfit=tuple(verdict.found for verdict in self._unfit),
            fixes=tuple(verdict.fix for verdict in self._unfit),
        )

    # -- fitness of the machine ----------------------------------------------------------------------------------------

    def check_caps(self, manifest: Manifest, method: Method, options: PeerOptions) -> None:
        """Raise MachineTooSlow when the volunteer's own caps leave no room for the exchange of a round."""
        load = line_load(manifest, method)
        for cap, what in ((options.max_upload, "upload, its cap"), (options.max_download, "download, its cap")):
            if load is not None and cap is not None:
                self._tell(of_link(load, cap, what))

    def check_budget(self, manifest: Manifest, method: Method, limits: UploadLimits) -> int:
        """Warn when a day of the run needs more upload than the volunteer's budget allows. Return the bytes of the
        largest payload."""
        largest = max(cost_of(manifest.model, method).fragment_bytes)
        need = upload_need(manifest, method)
        if need is None or not (found := quota_excess(limits, need)):
            return largest
        fitting = [codec for codec in KINDS[method.payload] if not codec_refusal(codec, manifest, method, limits)]
        fix = "Raise --daily-upload and --monthly-upload, or train alone for the rest of the time."
        if fitting:
            fix = f"With the codec {' or '.join(fitting)} it would fit: ask the operator. {fix}"
        self._warn(FitnessFinding(found, fix, never=False))
        return largest

    def check_download(self, manifest: Manifest, method: Method, state: JoinedState) -> None:
        """Warn when the state arrived slowly. A warning only, because the donor may have been the slow end."""
        load = line_load(manifest, method)
        given = state.transfer
        if load is None or given is None or given.nbytes < TOLD_BYTES or given.seconds <= 0:
            return
        verdict = of_link(load, given.nbytes / given.seconds, "download, as measured with the state")
        if verdict is not None:
            self._warn(verdict)

    async def watch(
        self, progress: Callable[[], TrainerProgress], round_s: float | None, rounds_left: Callable[[], int]
    ) -> None:
        """Measure the first inner steps and report on them, then wait until cancelled. `round_s`: seconds of a round.
        None: rounds are in inner steps. Raises MachineTooSlow when the run will be over before one step is done."""
        while progress().steps < 1:
            await asyncio.sleep(LOOK_S)
        self._first_step()
        while round_s is not None and progress().steps < MEASURED_STEPS and progress().step_s <= round_s:
            await asyncio.sleep(LOOK_S)
        if round_s is not None:
            self._tell(of_steps(progress().step_s, round_s, rounds_left()))
        await asyncio.Event().wait()

    def _first_step(self) -> None:
        self.end_phase("first step")
        took = self._phase_timer.took
        parts = (f"{name} {seconds:.1f} s{self._in_brackets(name)}" for name, seconds in took.items())
        waited = self._phase_timer.skipped
        beside = f", beside {waited:.1f} s of waiting for you" if waited >= TOLD_WAIT_S else ""
        self._joined = f"joined in {self._phase_timer.total:.1f} s{beside}: {', '.join(parts)}"
        self._say(self._joined)
        seconds = {phase: took.get(phase.replace("_", " "), 0.0) for phase in PHASES}
        trainer = {phase: self._trainer.get(phase.replace("_", " "), 0.0) for phase in BESIDE}
        self._emit(events.Joined(seconds=self._phase_timer.total, waited_for_person=waited, **seconds, **trainer))

    def _in_brackets(self, phase: str) -> str:
        detail = self._details.get(phase, "")
        return f" ({detail})" if detail else ""

    def _tell(self, verdict: FitnessFinding | None) -> None:
        if verdict is None:
            return
        if verdict.never:
            raise MachineTooSlow(verdict.found, verdict.fix)
        self._warn(verdict)

    def _warn(self, verdict: FitnessFinding) -> None:
        self._unfit.append(verdict)
        self._say(f"slow: {verdict.found}. {verdict.fix}")
        self._emit(events.Unfit(reason=verdict.found))


def _fetched(given: StateTransfer) -> str:
    """Return the size of the transferred state and its rate, for a person."""
    told = amount(given.nbytes, "bytes")
    return told if given.seconds <= 0 else f"{told} at {amount(given.nbytes / given.seconds, 'bytes')}/s"
