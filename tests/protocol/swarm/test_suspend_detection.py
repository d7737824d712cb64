"""Tests of sleep and of changes of the wall clock, distinguished by three clocks."""

from __future__ import annotations

import pytest

from peer.protocol.swarm.suspend_detection import ASLEEP_S, STEP_S, ClockReading, Slept, Stepped, SuspendDetector


def after(*beats: tuple[float, float, float]) -> list[Slept | Stepped]:
    """Observe readings at intervals of one second, each given as the (steady, awake, wall) seconds that passed. Return
    the result of the last one."""
    steady = awake = 10.0
    wall = 1000.0
    detector, noticed = SuspendDetector(1.0, ClockReading(steady, awake, wall)), list[Slept | Stepped]()
    for passed in beats:
        steady, awake, wall = steady + passed[0], awake + passed[1], wall + passed[2]
        noticed = detector.observe(ClockReading(steady, awake, wall))
    return noticed


def test_a_regular_or_early_beat_is_nothing() -> None:
    assert after((1.0, 1.0, 1.0), (0.1, 0.1, 0.1)) == []


def test_a_busy_machine_is_late_and_not_asleep() -> None:
    assert after((1 + ASLEEP_S - 0.1,) * 3) == []


def test_a_lid_that_was_closed() -> None:
    (slept,) = after((3601.0, 1.0, 3601.0))
    assert slept == Slept(3600.0, 3600.0)
    assert str(slept) == "asleep for 3600 s"


def test_a_process_that_was_stopped() -> None:
    (slept,) = after((21.0, 21.0, 21.0))
    assert slept == Slept(20.0, 0.0)
    assert str(slept) == "stopped for 20 s"


@pytest.mark.parametrize("by", [3600.0, -600.0, STEP_S])
def test_a_clock_that_was_set_is_told_once(by: float) -> None:
    (stepped,) = after((1.0, 1.0, 1.0 + by))
    assert isinstance(stepped, Stepped)
    assert stepped.seconds == pytest.approx(by)
    assert after((1.0, 1.0, 1.0 + by), (1.0, 1.0, 1.0)) == []


def test_a_clock_that_is_slewed_is_not_a_step() -> None:
    assert after((1.0, 1.0, 1.0005)) == []


def test_asleep_and_set_at_once() -> None:
    slept, stepped = after((61.0, 1.0, 71.0))
    assert isinstance(slept, Slept)
    assert isinstance(stepped, Stepped)
    assert (slept.seconds, stepped.seconds) == (60.0, 10.0)
