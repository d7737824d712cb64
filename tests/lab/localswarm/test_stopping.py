"""A leaving daemon gets the time that it announced; any other is killed after the grace period."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.lab.localswarm.processes import Daemon, announced_leave_s
from peer.node.control import ControlServer
from peer.run.home import Home

ENDS_LATE = """
import signal, time
def late(*_):
    time.sleep(1.0)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, late)
print("ready", flush=True)
time.sleep(60)
"""
GRACE_S = 0.2


def stopped(folder: Path, status: dict[str, Any]) -> int | None:
    """Stop a process that ends one second after the signal and reports this status. Return its exit code."""

    async def answer(command: str, request: dict[str, Any]) -> dict[str, Any]:
        return status

    folder.mkdir()

    async def main() -> int | None:
        daemon = Daemon("a", folder)
        server = ControlServer(Home(folder).control_socket, answer)
        await server.start()
        daemon.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ENDS_LATE, stdout=asyncio.subprocess.PIPE
        )
        assert daemon.process.stdout is not None
        await daemon.process.stdout.readline()
        await daemon.stop(GRACE_S)
        await server.close()
        return daemon.process.returncode

    return asyncio.run(main())


@pytest.mark.processes
def test_twice_what_it_announces_is_waited_for(tmp_path: Path) -> None:
    assert stopped(tmp_path / "home", {"leaving": {"announced_s": 10.0}}) == 0


@pytest.mark.processes
def test_without_a_word_it_is_killed_after_the_grace(tmp_path: Path) -> None:
    assert stopped(tmp_path / "home", {"leaving": None}) == -signal.SIGKILL


def test_what_is_announced() -> None:
    assert announced_leave_s({"leaving": {"announced_s": 23.1}}) == 23.1
    assert announced_leave_s({"leaving": None}) == announced_leave_s({}) == announced_leave_s(None) == 0.0
