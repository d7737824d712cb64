"""The trial of a few inner steps: the data that it trains on, and the judgement of its speed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.errors import DataError, MachineTooSmall, TrainerDied
from peer.joining.artifacts import RunFiles
from peer.node.doctor import trial as trials
from peer.node.doctor.finding import Severity
from peer.node.doctor.prediction import StepTrial
from peer.node.doctor.request import NO_RUN
from peer.node.doctor.trial import StepTrialRun, judged
from peer.run.manifest import default_text, derive, parse_manifest
from peer.run.options import PeerOptions

MANIFEST = parse_manifest(derive(default_text(), ["sync.sync_every=10"]).encode())
TRIAL = StepTrial(device="cpu", micro_batch=8, reason="fp32", step_s=1.0, tokens_per_step=512, prepared_s=1.0)


def test_a_machine_that_keeps_up_is_fine() -> None:
    found = judged(TRIAL, MANIFEST)
    assert found.severity is Severity.OK
    assert found.measured == "512 tokens a second on fp32"


def test_a_machine_that_is_slower_than_the_rounds_is_told_how_many_it_sits_out() -> None:
    found = judged(replace(TRIAL, step_s=25.0), MANIFEST)
    assert found.severity is Severity.WARNING
    assert "would sit out 2 of 3 rounds" in found.measured


@pytest.mark.parametrize(
    ("error", "what", "told"),
    [
        (DataError("too little data"), "data", "too little data"),
        (MachineTooSmall("one window needs 3 GiB"), "training", "one window needs 3 GiB"),
        (TrainerDied("killed by SIGKILL (out of memory?)"), "training", "the trainer died: killed by SIGKILL"),
    ],
)
def test_an_error_of_the_trainer_is_the_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, what: str, told: str
) -> None:
    async def fails(*_: Any) -> StepTrial:
        raise error

    monkeypatch.setattr(StepTrialRun, "_try", fails)
    options = PeerOptions(home=tmp_path, run_id=NO_RUN)
    trial, found = asyncio.run(StepTrialRun(options, tmp_path, None).run(MANIFEST, RunFiles()))
    assert trial is None
    assert (found.what, found.severity) == (what, Severity.ERROR)
    assert told in found.measured


def test_a_trial_without_room_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "free_disk", lambda folder: 1000)
    options = PeerOptions(home=tmp_path, run_id=NO_RUN)
    trial, found = asyncio.run(StepTrialRun(options, tmp_path, None).run(MANIFEST, RunFiles()))
    assert trial is None
    assert found.severity is Severity.WARNING
    assert found.fix == "Set TMPDIR to a folder with room."
