"""The resource counters of a process, and the commit of the program."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peer.lab.bench import machine

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
    held = _touched()
    before = machine.resident()
    held.close()
    machine.forget_peak()
    assert machine.resident("VmHWM") < before - 32

    again = _touched()
    assert machine.resident("VmHWM") > before - 16
    again.close()


@pytest.mark.processes
def test_the_commit_is_that_of_the_program_alone(tmp_path: Path) -> None:
    """The program's commit must not be that of another project whose checkout contains the virtual environment."""
    for words in (
        ("init", "-q"),
        ("-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-m", "x"),
    ):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    below = tmp_path / "venv" / "site-packages"
    below.mkdir(parents=True)
    assert machine.commit(below) == ""
    assert len(machine.commit(tmp_path)) >= 7


def _touched() -> mmap.mmap:
    """Return 64 MiB of touched pages. Mapped directly, because memory freed by `malloc` may stay with the process, and
    does so after a test has tuned malloc as a daemon does."""
    pages = mmap.mmap(-1, 64 * 2**20)
    for page in range(0, len(pages), mmap.PAGESIZE):
        pages[page] = 1
    return pages
