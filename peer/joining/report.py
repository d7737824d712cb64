"""A peer's first minute: what each phase from the command to the first inner step took, and whether this machine and
its link are fit for the run; both told to the person, the journal and `peer status`.

Waiting for the person (an answer to a question, or the end of a condition of theirs) is no phase: it is reported
beside."""

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
from peer.protocol.policy.upload_quota import UploadLimits, too_much
from peer.run.costs import cost_of
from peer.run.load import codec_refusal, line_load, upload_need
from peer.run.manifest import Manifest
from peer.run.options import PeerOptions

LOOK_S = 0.1
MEASURED_STEPS = 3
"""After so many inner steps their median says how fast this machine is."""
TOLD_BYTES = 1_000_000
"""A state this large says something about the link that it came by."""
TOLD_WAIT_S = 0.1
"""A shorter wait for the person is not told."""
PHASES = (
    *("program", "network", "manifest", "terms", "files", "amendments", "state", "clock"),
    *("trainer", "others", "first_evaluation", "first_step"),
)
"""In order."""
BESIDE = ("torch_import", "waiting_for_the_state", "data", "model")
"""Of the trainer's process."""


class JoinReport:
    """A report of how this peer joined: the duration of each phase, and whether the machine is fit for the run. It is
    shown to the volunteer and in `peer status`.

    `phase_timer`: the phase timer, which has been running since the command began."""

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
        """A phase is over. `detail`: what there was in it, for a person."""
        self._phase_timer.end(phase)
        self._details[phase] = detail

    def person_answered(self) -> None:
        """Leave the seconds since the last phase out: the person was waited for."""
        self._phase_timer.skip()

    def on_event(self, event: events.Event, t: float) -> None:
        """A listener of the journal: phases that the coordinator ends."""
        if self._joined:
            return
        if isinstance(event, events.TrainingBegan):
            self.end_phase("others")
        elif isinstance(event, events.Evaluated):
            self.end_phase("first evaluation")

    def state_obtained(self, state: JoinedState) -> None:
        self.end_phase("state", "own checkpoint" if state.transfer is None else _fetched(state.transfer))

    def trainer_ready(self, info: TrainerInfo) -> None:
        """It is ready."""
        self._trainer = dict(info.seconds)
        self.end_phase("trainer", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in info.seconds.items()))
        self._micro_batch = info.micro_batch_reason
        if info.micro_batch:
            self._say(f"micro-batch: {info.micro_batch_reason}")
            self._emit(events.MicroBatch(windows=info.micro_batch, reason=info.micro_batch_reason))

    def report(self) -> MachineStatus:
        """For `peer status`."""
        return MachineStatus(
            joined_in_s=round(self._phase_timer.total, 2) if self._joined else None,
            waited_for_you_s=round(self._phase_timer.skipped, 2),
            phases_s={name: round(seconds, 3) for name, seconds in self._phase_timer.took.items()},
            micro_batch=self._micro_batch,
            unfit=tuple(verdict.found for verdict in self._unfit),
            fixes=tuple(verdict.fix for verdict in self._unfit),
        )

    # -- is it fit? --------------------------------------------------------------------------------------------------

    def check_caps(self, manifest: Manifest, method: Method, options: PeerOptions) -> None:
        """Raise MachineTooSlow when the volunteer's own caps leave no room for a round's exchange."""
        load = line_load(manifest, method)
        for cap, what in ((options.max_upload, "upload, its cap"), (options.max_download, "download, its cap")):
            if load is not None and cap is not None:
                self._tell(of_link(load, cap, what))

    def check_budget(self, manifest: Manifest, method: Method, limits: UploadLimits) -> int:
        """A word when a day of the run needs more upload than the volunteer's budget has; bytes of the largest round's
        payload."""
        largest = max(cost_of(manifest.model, method).fragment_bytes)
        need = upload_need(manifest, method)
        if need is None or not (found := too_much(limits, need)):
            return largest
        fitting = [codec for codec in KINDS[method.payload] if not codec_refusal(codec, manifest, method, limits)]
        fix = "Raise --daily-upload and --monthly-upload, or train alone for the rest of the time."
        if fitting:
            fix = f"With the codec {' or '.join(fitting)} it would fit: ask the operator. {fix}"
        self._warn(FitnessFinding(found, fix, never=False))
        return largest

    def check_download(self, manifest: Manifest, method: Method, state: JoinedState) -> None:
        """A word when the link was slow when the state came by it. Only a word: the donor may have been."""
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
        """Until cancelled; has nothing to do any more once the first steps are measured. `round_s` None: rounds are in
        inner steps. Raises MachineTooSlow when the run will be over before one step is done."""
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
    """Return how much of the state came, and how fast, for a person."""
    told = amount(given.nbytes, "bytes")
    return told if given.seconds <= 0 else f"{told} at {amount(given.nbytes / given.seconds, 'bytes')}/s"
