"""The entrypoint of replicas, run as a process: each takes a home that no other holds, and a free one again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "replica.sh"
UNTIL_TOLD = '#!/bin/sh\nreadlink "$PEER_HOME"\nread -r _ || true\n'
"""A stand-in for `peer`: prints its home, and runs until its input ends."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "homes").mkdir()
    (tmp_path / "tools").mkdir()
    program = tmp_path / "tools" / "peer"
    program.write_text(UNTIL_TOLD)
    program.chmod(0o755)
    return tmp_path


def replica(folder: Path, number: int) -> tuple[subprocess.Popen[str], str]:
    """Return a replica and the home that it took."""
    environment = {"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", "PEER_HOMES": str(folder / "homes")}
    environment["PEER_HOME"] = str(folder / f"link{number}")
    process = subprocess.Popen(
        ["sh", SCRIPT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip()).name


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_each_replica_takes_a_home_of_its_own_and_the_next_one_takes_what_is_free(folder: Path) -> None:
    first, home = replica(folder, 1)
    second, other = replica(folder, 2)
    assert (home, other) == ("1", "2")
    end(first)
    again, same = replica(folder, 3)
    assert same == "1", "a new container goes on with the home of the one before"
    end(second)
    end(again)
    assert (folder / "homes" / "1").stat().st_mode & 0o777 == 0o700


def test_a_killed_replica_leaves_its_home_to_the_next(folder: Path) -> None:
    first, home = replica(folder, 1)
    first.kill()
    first.communicate(timeout=60)
    again, same = replica(folder, 2)
    assert same == home
    end(again)
