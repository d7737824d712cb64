"""The faults of chaos, injected into small processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from peer.errors import UsageError
from peer.lab.localswarm.chaos import DISK_LEFT, Chaos, _stopped, _with_small_files, check
from peer.lab.localswarm.processes import Daemon
from peer.lab.localswarm.socket_owners import PROC
from peer.lab.sim.faults import Fault

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and prlimit")

WRITER = """
import sys, pathlib
for line in sys.stdin:
    try:
        pathlib.Path(sys.argv[1]).write_bytes(b"x" * int(line))
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_a_plan_that_cannot_be_done_is_refused() -> None:
    lossy = Fault("loss_burst", 0, at=1.0, seconds=1.0, amount=0.1)
    for bad in (lossy, Fault("kill", 0, on="round_due"), Fault("kill", 3, at=1.0)):
        with pytest.raises(UsageError):
            check((bad,), 3)
    check((Fault("kill", 2, at=1.0),), 3)


def state_of(pid: int) -> str:
    return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]


async def until(pid: int, states: str) -> None:
    async with asyncio.timeout(180):
        while state_of(pid) not in states:
            await asyncio.sleep(0.005)


@pytest.mark.processes
def test_a_stopped_process_goes_on_whatever_happens() -> None:
    async def main() -> None:
        child = await asyncio.create_subprocess_exec("sleep", "30")
        try:
            stopping = asyncio.create_task(_stopped([child.pid], 30.0))
            await until(child.pid, "T")
            stopping.cancel()
            await asyncio.wait({stopping})
            await until(child.pid, "SR")
        finally:
            child.kill()
            await child.wait()

    asyncio.run(main())


@pytest.mark.processes
def test_a_full_disk_takes_small_files_only(tmp_path: Path) -> None:
    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        path = str(tmp_path / "file")
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, path, stdin=pipe, stdout=pipe)
        assert child.stdin is not None
        assert child.stdout is not None

        async def write(size: int) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{size}\n".encode())
            async with asyncio.timeout(60):
                return (await child.stdout.readline()).decode().strip()

        try:
            assert await write(2 * DISK_LEFT) == "written"
            filling = asyncio.create_task(_with_small_files([child.pid], 30.0))
            await asyncio.sleep(0)
            assert await write(2 * DISK_LEFT) == "File too large"
            assert await write(DISK_LEFT // 2) == "written"
            filling.cancel()
            await asyncio.wait({filling})
            assert await write(2 * DISK_LEFT) == "written"
        finally:
            child.kill()
            await child.wait()

    asyncio.run(main())


class NoGame:
    """A swarm whose only peer is not running. Records restarts."""

    def __init__(self, home: Path) -> None:
        self.daemons = {1: Daemon("peer 1", home / "peer-1")}
        self.came: list[int] = []

    async def kill_peer(self, number: int) -> None:
        raise AssertionError("there is nobody to kill")

    async def restart_peer(self, number: int) -> None:
        self.came.append(number)


def test_what_met_nobody_says_so(tmp_path: Path) -> None:
    plan = (Fault("kill", 0, at=0.0), Fault("stall", 0, at=0.0, seconds=9.0), Fault("restart", 0, at=0.0))
    game, chaos = NoGame(tmp_path), Chaos(plan, 1, tmp_path, lambda text: None)

    async def main() -> None:
        async with chaos.relays(game, Daemon("bootstrap", tmp_path / "bootstrap")):
            await chaos.run()

    asyncio.run(main())
    assert game.came == [1]
    assert [(one.fault.kind, one.missed_reason) for one in chaos.fault_records] == [
        ("kill", "the peer was dead"),
        ("stall", "the peer was dead"),
        ("restart", ""),
    ]
