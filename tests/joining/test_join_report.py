"""The report of a join: its phases, and the speed of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from peer.clock.phases import PhaseTimer
from peer.errors import MachineTooSlow
from peer.joining.report import MEASURED_STEPS, PHASES, JoinReport
from peer.joining.resume import JoinedState, StateTransfer
from peer.observe import events
from peer.observe.status.codec import to_json
from peer.outer.state import OuterState
from peer.ports.trainer import TrainerInfo, TrainerProgress
from peer.protocol.messages import RunId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.upload_quota import UploadLimits
from peer.run.costs import cost_of
from peer.run.load import line_load, upload_need
from peer.run.manifest import Manifest, default_text, parse_manifest
from peer.run.options import PeerOptions
from peer.run.overrides import apply_overrides
from peer.run.resolve import resolve


def manifest(*changes: str) -> Manifest:
    return parse_manifest(apply_overrides(default_text(), ["sync.clock=seconds", *changes]).encode())


class Told:
    """A join report with the lines and journal events that it emitted."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events: list[events.Event] = []
        self.arrival = JoinReport(PhaseTimer(), self.events.append, self.said.append)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def watched(
        self, progress: Callable[[], TrainerProgress], round_s: float | None, rounds_left: int = 5
    ) -> None:
        """Run the watch until it has nothing left to measure."""
        watching = asyncio.create_task(self.arrival.watch(progress, round_s, lambda: rounds_left))
        await asyncio.wait({watching}, timeout=0.3)
        if watching.done():
            watching.result()
        watching.cancel()
        await asyncio.wait({watching})


def options(**caps: float) -> PeerOptions:
    return PeerOptions(home=Path("unused"), run_id=RunId(bytes(32)), **caps)


def test_each_phase_is_told_and_journaled() -> None:
    told = Told()
    told.arrival.end_phase("program")
    told.arrival.end_phase("manifest")
    layout = Layout.whole([TensorSpec("a", (3,))])
    outer = OuterState.fresh(layout, torch.zeros(3))
    told.arrival.state_obtained(JoinedState(outer, 4, "", StateTransfer("d", 12_000_000, 1.0)))
    seconds = {"torch import": 4.125, "data": 0.5, "model": 0.25}
    told.arrival.trainer_ready(TrainerInfo("cpu", "", 64, 4, "4 of 8 windows at once: asked for", seconds))
    told.arrival.on_event(events.TrainingBegan(round=5), 0.0)
    asyncio.run(told.watched(lambda: TrainerProgress(steps=MEASURED_STEPS, step_s=0.1), 60.0))
    line = told.said[-1]
    assert line.startswith("joined in ")
    assert "12.0 MB at 12.0 MB/s)" in line
    assert "(torch import 4.1 s, data 0.5 s, model 0.2 s)" in line
    assert told.kinds() == ["micro_batch", "joined"]
    joined = told.events[-1]
    assert isinstance(joined, events.Joined)
    assert (joined.torch_import, joined.data, joined.model) == (4.125, 0.5, 0.25)
    assert min(joined.program, joined.state, joined.trainer, joined.others, joined.first_step) > 0
    assert joined.seconds == pytest.approx(sum(getattr(joined, phase) for phase in PHASES))
    report = to_json(told.arrival.report())
    assert report["micro_batch"] == "4 of 8 windows at once: asked for"
    assert report["unfit"] == []


def test_nothing_is_told_before_the_first_step() -> None:
    told = Told()
    asyncio.run(told.watched(TrainerProgress, 60.0))
    assert told.said == []
    assert to_json(told.arrival.report())["joined_in_s"] is None


def test_a_slow_machine_is_told_and_stays() -> None:
    told = Told()
    asyncio.run(told.watched(lambda: TrainerProgress(steps=1, step_s=74.0), 60.0))
    assert "sit out 1 of 2 rounds" in told.said[-1]
    assert told.kinds() == ["joined", "unfit"]
    assert len(to_json(told.arrival.report())["unfit"]) == 1


def test_a_machine_that_cannot_do_one_step_before_the_end_is_sent_home() -> None:
    with pytest.raises(MachineTooSlow, match="the run ends in 5 rounds"):
        asyncio.run(Told().watched(lambda: TrainerProgress(steps=1, step_s=6000.0), 60.0))


def test_rounds_in_steps_wait_for_the_slow() -> None:
    told = Told()
    asyncio.run(told.watched(lambda: TrainerProgress(steps=1, step_s=6000.0), None))
    assert told.kinds() == ["joined"]
    steps = parse_manifest(apply_overrides(default_text(), ["sync.clock=steps", "sync.sync_every=10"]).encode())
    assert line_load(steps, resolve(steps.sync)) is None


def test_a_cap_too_low_for_the_rounds_is_told_or_refused() -> None:
    told, run = Told(), manifest("sync.sync_every=10", "sync.preset=streaming-noloco")
    method = resolve(run.sync)
    load = line_load(run, method)
    assert load is not None
    assert not load.waits
    told.arrival.check_caps(run, method, options(max_upload=load.nbytes / 9.0))
    assert told.events == []
    with pytest.raises(MachineTooSlow, match="upload, its cap"):
        told.arrival.check_caps(run, method, options(max_upload=load.nbytes / 11.0))
    full = manifest("sync.sync_every=10")
    method = resolve(full.sync)
    load = line_load(full, method)
    assert load is not None
    told.arrival.check_caps(full, method, options(max_download=load.nbytes / 6.0))
    assert "stand still 60 % of the time" in told.said[-1]
    assert told.kinds() == ["unfit"]


def test_a_budget_too_small_for_a_day_is_told_with_what_would_fit() -> None:
    told, run = Told(), manifest("sync.codec=bf16", "sync.sync_every=10")
    method, need = resolve(run.sync), upload_need(run, resolve(run.sync))
    assert need is not None
    room = UploadLimits(day=round(need.day + 0.8e9))
    assert told.arrival.check_budget(run, method, room) == max(cost_of(run.model, method).fragment_bytes)
    assert told.events == []
    told.arrival.check_budget(run, method, UploadLimits(day=round(0.6 * need.day + 0.75e9)))
    assert told.kinds() == ["unfit"]
    (line,) = told.said
    assert "control traffic" in line
    assert "s instead of 10 s" in line
    assert "With the codec modulo7 or modulo6 it would fit" in line


def test_in_steps_nobody_knows_what_a_day_uploads() -> None:
    told, run = Told(), manifest("sync.clock=steps")
    assert told.arrival.check_budget(run, resolve(run.sync), UploadLimits(day=1)) > 0
    assert told.said == []


def test_the_wait_for_the_person_is_in_no_phase_and_told_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("peer.clock.phases.time", SimpleNamespace(monotonic=lambda: now[0]))
    told = Told()

    def after(seconds: float, ended: Callable[[], None]) -> None:
        now[0] += seconds
        ended()

    after(2.0, lambda: told.arrival.end_phase("manifest"))
    after(0.5, lambda: told.arrival.end_phase("terms"))
    after(23.9, told.arrival.person_answered)
    after(3.0, lambda: told.arrival.end_phase("files"))
    after(1.0, lambda: told.arrival.end_phase("amendments"))
    asyncio.run(told.watched(lambda: TrainerProgress(steps=MEASURED_STEPS, step_s=0.1), 60.0))
    assert told.said == [
        "joined in 6.5 s, beside 23.9 s of waiting for you: "
        "manifest 2.0 s, terms 0.5 s, files 3.0 s, amendments 1.0 s, first step 0.0 s"
    ]
    joined = told.events[-1]
    assert isinstance(joined, events.Joined)
    assert (joined.seconds, joined.amendments, joined.waited_for_person) == (6.5, 1.0, pytest.approx(23.9))
    assert joined.seconds == pytest.approx(sum(getattr(joined, phase) for phase in PHASES))
    report = to_json(told.arrival.report())
    assert (report["joined_in_s"], report["waited_for_you_s"]) == (6.5, 23.9)
