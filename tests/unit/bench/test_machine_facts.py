"""What the system counts for a process."""

from __future__ import annotations

import os
import sys
import time

import pytest

from peer.bench import machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")


@linux
def test_processor_seconds_are_those_of_the_process() -> None:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass

    assert machine.cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


@linux
def test_a_process_that_is_gone_has_no_seconds() -> None:
    assert machine.cpu_seconds(2**22 + 1) is None  # beyond the largest pid


@linux
def test_the_peak_is_counted_anew() -> None:
    held = bytearray(os.urandom(1)) * (64 * 2**20)
    before = machine.resident()
    del held
    machine.forget_peak()
    assert machine.resident("VmHWM") < before - 32

    again = bytearray(os.urandom(1)) * (64 * 2**20)
    assert machine.resident("VmHWM") > before - 16
    del again
