"""The example's loop in a swarm of real processes: a node, two loops of a user's, a peer with the built-in one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe.event_codec import read_lines
from peer.observe.events import Dropped, Event, RoundEnded
from peer.observe.totals import ledger, read_totals
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides
from peer.trainer.arena import read_counters

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
ROUNDS, ELEMENTS, DEADLINE_S = 20, 217_664, 240.0
SETTINGS = ["sync.clock=seconds", "sync_every=5", f"total_rounds={ROUNDS}", "eval_windows=16"]


class Loop:
    """A process of the example."""

    def __init__(self, folder: Path, ticket: str, run_id: bytes) -> None:
        self.home, self._ticket, self._run_id = folder, ticket, run_id
        folder.mkdir()
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(EXAMPLE), self._ticket, str(self.home), "--yes"]
        with (self.home / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.home)

    @property
    def output(self) -> str:
        return (self.home / "output.txt").read_text()

    @property
    def events(self) -> list[Event]:
        journal = Home(self.home).run(self._run_id).journal
        return [line[0] for line in read_lines(journal) if line is not None] if journal.exists() else []

    @property
    def exchanged(self) -> int:
        return sum(isinstance(one, RoundEnded) and one.outcome == "exchanged" for one in self.events)

    @property
    def daemon(self) -> int:
        """Process id of its daemon, which is its only child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def imbalance(self) -> int:
        folder = Home(self.home).run(self._run_id)
        counters = read_counters(folder.path, 1)
        return ledger(read_totals(folder.journal), counters.tokens, counters.base, [ELEMENTS]).imbalance


async def until(done: Callable[[], bool], loop: Loop) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, loop.output
        await asyncio.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loops_of_a_user_outlive_their_daemons_and_go_on_after_a_kill(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "run.toml"
        node, builtin = Daemon("node", tmp_path / "node"), Daemon("builtin", tmp_path / "builtin")
        operator = identities.load_or_create(Home(node.home).identity)
        signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, path)
        ticket = await start_bootstrap(node, path, min_peers=1)
        loops = [Loop(tmp_path / name, ticket, signed.run_id) for name in ("first", "second")]
        await start_peer(builtin, ticket, threads=1, speed=1.0, min_peers=1)
        try:
            first, second = loops
            await until(lambda: first.exchanged >= 2, first)
            os.kill(first.daemon, signal.SIGKILL)
            before = first.exchanged
            await until(lambda: second.exchanged >= 3, second)
            second.process.kill()
            second.process.wait()
            second.start()
            await until(lambda: first.exchanged >= before + 3, first)
            for loop in loops:
                await until(lambda loop=loop: loop.process.poll() is not None, loop)
                assert loop.process.returncode == 0, loop.output
                assert "the run is over" in loop.output
                assert loop.imbalance() == 0
            assert not [one for one in first.events if isinstance(one, Dropped)], "a lost daemon costs no work"
            faults = [line for line in first.output.splitlines() if line.startswith("the daemon")]
            assert faults == ["the daemon was killed by SIGKILL"]
        finally:
            for loop in loops:
                loop.process.kill()
                loop.process.wait()
            await asyncio.gather(builtin.stop(10.0), node.stop(10.0))

    asyncio.run(main())
