"""The conditions of `--when`, and their sources on systems without the services."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from peer.errors import UsageError
from peer.guest.conditions import ConditionReading, NoServices, parse_conditions
from peer.guest.options import GuestOptions, core_budget, threads_for
from peer.guest.settling import SettledCondition
from peer.guest.sources import IdleSource, PluggedInSource, UnmeteredSource
from peer.guest.temperature import CoolSource

YES, NO, UNKNOWN = (ConditionReading(holds, "reason") for holds in (True, False, None))


def test_conditions_are_parsed_once_each() -> None:
    assert parse_conditions("idle, plugged-in,idle") == ("idle", "plugged-in")
    assert parse_conditions("Plugged_In,unmetered") == ("plugged-in", "unmetered")


@pytest.mark.parametrize(("text", "found", "fix"), [("idel", "'idel'", "Did you mean idle?"), ("", "''", "There are")])
def test_a_word_that_is_none_is_named(text: str, found: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_conditions(text)
    assert found in caught.value.found
    assert fix in caught.value.fix


def test_a_condition_is_lost_at_once_and_back_when_it_held_for_a_while() -> None:
    condition = SettledCondition(10.0)
    condition.update(YES, 0.0)
    assert condition.block_reason(0.0) == ""
    condition.update(NO, 1.0)
    assert condition.block_reason(1.0) == "reason"
    condition.update(YES, 2.0)
    assert condition.block_reason(2.0) == "reason; goes on when that held for 10 s"
    assert condition.settles_in(5.0) == 7.0
    condition.update(NO, 11.0)  # the condition flaps, so the time begins anew
    condition.update(YES, 12.0)
    condition.update(YES, 21.9)
    assert condition.block_reason(21.9) != ""
    condition.update(YES, 22.0)
    assert condition.block_reason(22.0) == ""


def test_what_is_not_told_counts_as_allowed() -> None:
    condition = SettledCondition(0.0)
    condition.update(UNKNOWN, 0.0)
    assert condition.block_reason(0.0) == ""


@pytest.mark.parametrize(
    ("battery", "holds"),
    [
        (None, True),
        (SimpleNamespace(power_plugged=True), True),
        (SimpleNamespace(power_plugged=False), False),
        (SimpleNamespace(power_plugged=None), None),
    ],
)
def test_without_upower_psutil_tells_of_the_battery(
    battery: Any, holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert asyncio.run(PluggedInSource(NoServices()).read()).holds is holds


def test_without_services_nothing_is_told_and_why() -> None:
    for source in (IdleSource(NoServices()), UnmeteredSource(NoServices())):
        reading = asyncio.run(source.read())
        assert reading.holds is None
        assert "this system has no D-Bus" in reading.why


def test_a_hot_machine_goes_on_some_degrees_below_its_limit() -> None:
    told = iter([85.0, 85.1, 84.0, 80.1, 80.0, 85.0, None])
    source = CoolSource(85.0, lambda: next(told))
    readings = [asyncio.run(source.read()) for _ in range(7)]
    assert [one.holds for one in readings] == [True, False, False, False, True, True, None]
    assert readings[1].why == "above the limit of 85 °C: goes on at 80 °C"
    assert readings[1].measured == "85 °C"


@pytest.mark.parametrize(
    ("share", "asked", "cores", "threads", "budget"),
    [
        (1.0, None, 8, 7, None),
        (0.5, None, 8, 4, None),
        (0.5, None, 2, 1, None),
        (0.3, None, 8, 3, 2.4),
        (0.1, None, 4, 1, 0.4),
        (0.5, 8, 8, 4, None),
        (0.9, 2, 8, 2, None),
        (1.0, 3, 8, 3, None),
    ],
)
def test_a_share_of_the_processor_is_threads_times_duty(
    share: float, asked: int | None, cores: int, threads: int, budget: float | None
) -> None:
    assert threads_for(share, asked, cores) == threads
    assert core_budget(share, threads, cores) == (None if budget is None else pytest.approx(budget))


def test_codec_and_outer_step_stay_below_the_trainer() -> None:
    assert GuestOptions(low_priority=True).bulk_nice > 10
    assert GuestOptions().bulk_nice > 0
