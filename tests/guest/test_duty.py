"""The pauses of a trainer with a share of the machine, and its priority."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from peer.guest.duty import DutyCycle, TrainerShares


class Clocks:
    """Wall-clock and processor seconds that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.used = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.wall)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.wall += seconds

    def work(self, seconds: float, cores: float) -> None:
        self.wall += seconds
        self.used += seconds * cores

    def duty(self, shares: TrainerShares, *, on_gpu: bool = False) -> DutyCycle:
        return DutyCycle(shares, on_gpu=on_gpu, used=lambda: self.used)


def test_it_uses_its_share_of_the_processor_whatever_it_works_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    duty = clocks.duty(TrainerShares(cores=1.2, threads=3))
    for turn in range(100):
        clocks.work(0.2, 2.5)
        rest_s = duty.rest_s(0.2)
        assert duty.period(0.2) == pytest.approx(0.5 / 1.2) or turn % 10 == 1, "an evaluation came before that step"
        clocks.sleep(rest_s)
        duty.rested()
        if turn % 10 == 0:
            clocks.work(1.0, 3.0)  # an evaluation
    assert clocks.used / clocks.wall == pytest.approx(1.2, rel=0.02)


def test_a_long_step_rests_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    duty = clocks.duty(TrainerShares(cores=0.5))
    clocks.work(0.05, 1.0)
    duty.rest_if_due()
    assert clocks.wall == 0.05, "too short a rest"
    clocks.work(0.95, 1.0)
    duty.rest_if_due()
    assert clocks.wall == pytest.approx(2.0)
    assert duty.resting_before(lambda: True)()


def test_waiting_for_others_counts_as_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    duty = clocks.duty(TrainerShares(cores=0.5))
    clocks.sleep(30.0)
    clocks.work(1.0, 1.0)
    assert duty.rest_s(1.0) == 0.0
    duty.rested()
    clocks.work(1.0, 1.0)
    assert duty.rest_s(1.0) == 1.0, "and is forgotten after one step"


@pytest.mark.parametrize(("on_gpu", "rest_s"), [(True, 0.25), (False, 0.0)])
def test_a_share_of_the_gpu_is_a_rest_after_each_step(
    on_gpu: bool, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    duty = Clocks(monkeypatch).duty(TrainerShares(gpu=0.8), on_gpu=on_gpu)
    assert duty.rest_s(1.0) == pytest.approx(rest_s)
    assert duty.reasons == [
        "at most 80% of the GPU's time: --gpu" if on_gpu else "--gpu changes nothing: no GPU is used"
    ]


PROGRAM = """
import os, threading
from peer.guest.priority import lower_priority
stop, ready = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (ready.set(), stop.wait()))
thread.start()
ready.wait()
print(lower_priority())
print({os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")})
print(os.popen("nice").read().strip())
lower_priority()
print(os.getpriority(os.PRIO_PROCESS, 0))
stop.set()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere priorities are of processes, and there is no /proc")
def test_every_thread_and_child_gives_way() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout.splitlines() == ["nice 10, the disk only when it is idle", "{10}", "10", "10"]
