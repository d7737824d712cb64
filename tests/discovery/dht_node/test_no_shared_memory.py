"""The directory can be imported where /dev/shm is missing, read-only or full, as in some containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer.discovery.dht_node import process

LOADED = """
import _multiprocessing, errno, multiprocessing, os, sys

class Missing:
    SEM_VALUE_MAX = _multiprocessing.SemLock.SEM_VALUE_MAX

    def __init__(self, *arguments):
        raise OSError(int(sys.argv[1]), os.strerror(int(sys.argv[1])))

_multiprocessing.SemLock = Missing
before = multiprocessing.Lock
import peer.discovery.dht_node.process
assert multiprocessing.Lock == before
print("loaded")
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(38, id="missing"),
        pytest.param(30, id="read-only", marks=pytest.mark.nightly),
        pytest.param(28, id="full", marks=pytest.mark.nightly),
    ],
)
def test_hivemind_is_loaded_without_shared_memory(number: int) -> None:
    command = [sys.executable, "-c", LOADED, str(number)]
    assert subprocess.check_output(command, text=True, timeout=120) == "loaded\n"


def test_a_folder_of_sockets_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SOCKETS", tmp_path / "absent")
    error = process.failed("died right after its start (EOFError())")
    assert error.found.endswith("absent, which this user cannot write to")
    assert "--tmpfs" in error.fix
