"""When `peer swarm` ends, for whatever reason, none of its processes and files may remain."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

PATIENCE_S = 180.0


@dataclass(frozen=True)
class Foreground:
    """A small swarm in the foreground of its own terminal."""

    program: subprocess.Popen[bytes]
    terminal: int
    report: Path

    def read_until(self, text: bytes | None) -> None:
        """Read from the terminal until `text` appears. None: until the program closes it."""
        seen, deadline = b"", time.monotonic() + PATIENCE_S
        while text is None or text not in seen:
            assert select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0], seen
            try:
                seen += os.read(self.terminal, 65536)
            except OSError:  # nobody holds its other end
                assert text is None, seen
                return


@pytest.fixture
def swarm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Foreground]:
    """Start the swarm. `param`: whether it is controlled by a terminal, which sends it signals. Without a terminal it
    has one peer."""
    ours, its = pty.openpty()
    report = tmp_path / "report.json"
    peers = 2 if request.param else 1
    choices = ["--peers", str(peers), "--rounds", "1000", "--report", str(report), "--home", str(tmp_path / "home")]
    for number in range(1, peers + 1):
        choices += ["--throttle", f"{number}@0.2"]  # all that counts is how it ends
    command = [sys.executable, "-m", "peer", "swarm", *choices]
    take = f"os.login_tty({its})" if request.param else f"os.dup2({its}, 1), os.close({its})"
    foreground = f"import os; {take}; os.execv({sys.executable!r}, {command!r})"
    with subprocess.Popen([sys.executable, "-c", foreground], pass_fds=[its]) as program:
        os.close(its)
        try:
            found = Foreground(program, ours, report)
            found.read_until(b"round 1")
            yield found
        finally:
            program.kill()
    os.close(ours)


def parents() -> dict[tuple[int, str], int]:
    """Return the parent of every live process. A process is identified by its number and start time."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *rest = path.read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(path.parent.name), rest[17]] = int(parent)
    return found


def below(pid: int) -> set[tuple[int, str]]:
    """Return the descendants of a process."""
    children = {process for process, parent in parents().items() if parent == pid}
    return children.union(*(below(child) for child, _ in children))


@pytest.mark.parametrize("swarm", [True], indirect=True)
def test_ctrl_c_lets_the_peers_finish_what_is_under_way(swarm: Foreground) -> None:
    everybody = below(swarm.program.pid)
    os.write(swarm.terminal, b"\x03")
    swarm.read_until(None)
    assert swarm.program.wait(PATIENCE_S) == 0
    assert not everybody & parents().keys()
    report = json.loads(swarm.report.read_text())
    assert [peer["exit_code"] for peer in report["peers"]] == [0, 0]
    book = report["swarm"]["ledger"]
    assert book["processed"] == book["applied"] + book["dropped"] + book["outstanding"] > 0


@pytest.mark.parametrize("swarm", [False], indirect=True)
def test_a_swarm_that_is_killed_leaves_nobody_behind(swarm: Foreground) -> None:
    """Runs without a terminal, because a terminal that closes sends signals to the processes."""
    everybody = below(swarm.program.pid)
    assert len(everybody) >= 2 + 1 + 2, "daemons, a trainer, helpers"
    swarm.program.kill()
    deadline = time.monotonic() + PATIENCE_S
    while left := everybody & parents().keys():
        assert time.monotonic() < deadline, left
        select.select([], [], [], 0.1)
