"""The prediction, from given numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.identity import Identity
from peer.joining.contract import contract_of
from peer.node.doctor.prediction import START_S, Prediction, RunLoad, StepTrial, predict
from peer.protocol.schedule import RoundClock
from peer.run.costs import cost_of
from peer.run.manifest import write_new
from peer.run.options import PeerOptions
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

TRIAL = StepTrial(device="cpu", micro_batch=4, reason="asked for", step_s=2.0, tokens_per_step=1000, prepared_s=5.0)
GOSSIP = resolve(SyncSection(preset="gossip", clock="seconds", sync_every=60.0))
SECONDS = RunLoad(
    method=GOSSIP, clock=RoundClock("seconds", 60.0, start=1000.0), sync_bytes=10**6, state_bytes=4 * 10**7
)
STEPS = replace(SECONDS, method=replace(GOSSIP, clock="steps", sync_every=50), clock=RoundClock("steps", 50))
HEADERS, CONTROL = 1.041, 4000 * 86400
"""Factor on payload, and bytes of control traffic of a day at rounds that are short or in steps."""


def test_tokens_follow_from_the_step() -> None:
    found = predict(TRIAL, SECONDS, 10**6, 2000.0)
    assert (found.device, found.micro_batch, found.tokens_per_day) == ("cpu", 4, 43_200_000)


def test_bytes_follow_from_the_rounds() -> None:
    found = predict(TRIAL, SECONDS, 10**6, 2000.0)
    assert found.bytes_per_day_up == found.bytes_per_day_down == HEADERS * 1440 * 10**6 + CONTROL
    steps = predict(TRIAL, STEPS, 10**6, 2000.0)
    assert steps.bytes_per_day_up == HEADERS * 864 * 10**6 + CONTROL  # an exchange every 100 s


def test_doctor_and_consent_show_the_same_bytes(tmp_path: Path) -> None:
    """Both include control traffic, which doctor once left out."""
    signed = write_new(tmp_path / "run.toml", Identity.generate(), ["sync.clock=seconds", "sync.sync_every=300"])
    method = resolve(signed.manifest.sync)
    agreed = contract_of(signed, PeerOptions(home=tmp_path, run_id=signed.run_id), "")
    cost = cost_of(signed.manifest.model, method)
    load = RunLoad(method=method, clock=method.round_clock(1.0), sync_bytes=cost.bytes_per_sync, state_bytes=0)
    found = predict(TRIAL, load, 10**6, 2000.0)
    assert found.bytes_per_day_up == agreed.bytes_up_a_day
    assert found.bytes_per_day_down == agreed.bytes_down_a_day


def test_a_daily_budget_bounds_what_is_sent() -> None:
    found = predict(TRIAL, SECONDS, 10**6, 2000.0, daily_upload=10**8)
    assert (found.bytes_per_day_up, found.bytes_per_day_down) == (10**8, HEADERS * 1440 * 10**6 + CONTROL)


def test_the_first_exchange_comes_after_the_state_and_one_sync_every() -> None:
    """The state takes 40 s and the start 5 s. The peer works for 60 s from 2045 on, and the next round is due at
    2140."""
    found = predict(TRIAL, SECONDS, 10**6, 2000.0)
    assert found.first_exchange_s == pytest.approx(140.0)
    assert predict(TRIAL, STEPS, 10**6, 2000.0).first_exchange_s == pytest.approx(START_S + 40 + 100)


def test_a_run_that_has_not_begun_has_no_first_exchange_yet() -> None:
    begun = replace(SECONDS, clock=RoundClock("seconds", 60.0))
    assert predict(TRIAL, begun, 10**6, 2000.0).first_exchange_s is None


def test_without_measurements_nothing_is_made_up() -> None:
    assert predict(None, SECONDS, 10**6, 2000.0) == Prediction()
    assert predict(TRIAL, None, None, 2000.0).bytes_per_day_up is None
    assert predict(TRIAL, SECONDS, None, 2000.0).first_exchange_s is None


def test_a_run_alone_sends_control_traffic_only() -> None:
    found = predict(TRIAL, replace(SECONDS, method=replace(GOSSIP, topology="solo")), 10**6, 2000.0)
    assert (found.bytes_per_day_up, found.first_exchange_s) == (CONTROL, None)


def test_a_person_reads_units() -> None:
    told = "\n".join(predict(TRIAL, SECONDS, 10**6, 2000.0).lines())
    assert "tokens a day    43,200,000" in told
    assert "1.84 GB up, 1.84 GB down, estimated" in told
    assert "about 2 min after start, estimated" in told
