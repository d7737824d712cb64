"""The wrong wall clock of chaos runs, which the daemon's own clock does not follow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer.clock.monotonic import boottime
from peer.clock.run_clock import RunClock
from peer.lab.localswarm.skewed_clock import skewed


def test_the_offset_is_read_anew_now_and_then(tmp_path: Path) -> None:
    file, at = tmp_path / "offset", [0.0]
    now = skewed(file, lambda: 1000.0 + at[0], lambda: at[0])
    assert now() == 1000.0, "no file, no error"
    file.write_text("600")
    at[0] = 0.05
    assert now() == 1000.05
    at[0] = 0.2
    assert now() == 1600.2
    file.write_text("")
    at[0] = 0.4
    assert now() == 1600.4, "half a file changes nothing"


@pytest.mark.processes
def test_the_program_under_it_is_peer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "peer.lab.localswarm.skewed_clock", str(tmp_path / "offset"), "join", "--help"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert "Take part in the run" in done.stdout


def test_a_jump_of_the_wall_clock_moves_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RunClock()
    before = clock.now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert 0 <= clock.now() - before < 1.0
    due = clock.now() + 10.0
    assert 9.0 < clock.raw(due) - boottime() < 10.1, "the trainer is told the same moment"
    clock.observe(30.0)
    assert 29.9 < clock.now() - before < 31.0
    assert 9.0 < clock.raw(due + 30.0) - boottime() < 10.1
