"""The training loops of the examples, in swarms of real processes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.observe.event_codec import read_lines
from peer.observe.events import Dropped, Event, RoundEnded
from peer.observe.totals import ledger, read_totals
from peer.run.home import Home
from peer.run.manifest import default_text, load_signed, sign_text
from peer.run.overrides import apply_overrides
from peer.trainer.arena import read_counters

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 240.0
ROUNDS, ELEMENTS = 20, 217_664
"""Rounds of the run of `own_loop.py`, and elements of its model."""
SETTINGS = ["sync.clock=seconds", "sync_every=10", f"total_rounds={ROUNDS}", "eval_windows=16"]


class Loop:
    """A process that runs an example. Its working folder is its home."""

    def __init__(
        self,
        folder: Path,
        ticket: str,
        run_id: bytes,
        *more: object,
        example: str = "own_loop.py",
        launcher: Sequence[str] = (),
    ) -> None:
        """`more`: arguments between the ticket and the home. `launcher`: module, with options, that starts the
        example."""
        self.home, self._run_id = folder, run_id
        self._command = [sys.executable, *launcher, EXAMPLES / example, ticket, *more, folder, "--yes"]
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        with (self.home / "output.txt").open("ab") as output:
            self.process = subprocess.Popen([*map(str, self._command)], stdout=output, stderr=output, cwd=self.home)

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
        return self.children[0]

    @property
    def children(self) -> list[int]:
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def rank(self, number: int) -> int:
        """Process id of a rank that torchrun has started."""
        wanted = f"RANK={number}".encode()
        return next(pid for pid in self.children if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))

    def imbalance(self, elements: int = ELEMENTS) -> int:
        folder = Home(self.home).run(self._run_id)
        counters = read_counters(folder.path, 1)
        return ledger(read_totals(folder.journal), counters.tokens, counters.base, [elements]).imbalance


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


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dead", [0, 1])
def test_sharded_ranks_are_restarted_by_torchrun_and_go_on(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # otherwise gloo uses the addresses of killed ranks

    async def main() -> None:
        path = tmp_path / "run.toml"
        node, builtin = Daemon("node", tmp_path / "node"), Daemon("builtin", tmp_path / "builtin")
        operator = identities.load_or_create(Home(node.home).identity)
        signed = sign_text(apply_overrides(default_text(), [*SETTINGS, "total_rounds=36"]), operator, path)
        ticket = await start_bootstrap(node, path, min_peers=1)
        loop = Loop(tmp_path / "ranks", ticket, signed.run_id, example="fsdp2.py", launcher=TORCHRUN)
        await start_peer(builtin, ticket, threads=1, speed=1.0, min_peers=1)
        try:
            await until(lambda: loop.exchanged >= 3, loop)
            os.kill(loop.rank(dead), signal.SIGKILL)
            before = loop.exchanged
            await until(lambda: loop.exchanged >= before + 3, loop)
            await until(lambda: loop.process.poll() is not None, loop)
            assert loop.process.returncode == 0, loop.output
            assert "the run is over" in loop.output
            assert loop.imbalance() == 0
        finally:
            loop.process.terminate()  # torchrun then ends its ranks
            loop.process.wait()
            await asyncio.gather(builtin.stop(10.0), node.stop(10.0))

    asyncio.run(main())


def peer(folder: Path, *words: object) -> str:
    """Run a `peer` command and return its output."""
    command = [sys.executable, "-m", "peer", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


GPT2 = {"model_type": "gpt2", "vocab_size": 600, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}


def test_the_trainers_of_two_libraries_train_one_gpt2_and_evaluate_it_as_the_program_does(tmp_path: Path) -> None:
    texts, home = tmp_path / "texts", tmp_path / "node"
    texts.mkdir()
    for name in ("argparse", "ast", "tarfile", "dataclasses", "inspect", "os", "subprocess", "tempfile"):
        shutil.copy(Path(os.__file__).with_name(f"{name}.py"), texts / f"{name}.txt")
    (tmp_path / "gpt2.json").write_text(json.dumps(GPT2))
    peer(tmp_path, "tokenizer", "train", texts, "--vocab", "600", "--out", "tokenizer.json")
    peer(tmp_path, "data", "build", texts, "--tokenizer", "tokenizer.json", "--out", "data", "--holdout-one-in", "4")
    settings = [word for value in ("sync_every=5", "total_rounds=8") for word in ("--set", value)]
    peer(
        tmp_path,
        *("manifest", "new", "gpt2.toml", "--home", home, "--model", "gpt2.json", "--data", "data", *settings),
    )
    run = load_signed(tmp_path / "gpt2.toml")

    async def main() -> None:
        node = Daemon("node", home)
        ticket = await start_bootstrap(node, tmp_path / "gpt2.toml", min_peers=2, data=tmp_path / "data")
        files = tmp_path / "gpt2.json", tmp_path / "tokenizer.json", texts
        loops = [
            Loop(tmp_path / name, ticket, run.run_id, *files, example=name)
            for name in ("hf_trainer.py", "lightning_trainer.py")
        ]
        try:
            for loop in loops:
                await until(lambda loop=loop: loop.process.poll() is not None, loop)
        finally:
            for loop in loops:
                loop.process.kill()
                loop.process.wait()
            await node.stop(10.0)
        for loop, saved in zip(loops, ("trained", "trained-by-lightning"), strict=True):
            assert loop.process.returncode == 0, loop.output
            assert loop.exchanged >= 5
            assert loop.imbalance(run.manifest.model.parameters) == 0
            printed = re.search(r"the hold-out's loss is ([\d.]+)", loop.output)
            assert printed is not None, loop.output
            evaluated = json.loads(peer(tmp_path, "eval", loop.home, "--json"))
            assert float(printed[1]) == pytest.approx(evaluated["loss"], abs=1e-4)
            assert evaluated["loss"] < math.log(GPT2["vocab_size"]) - 0.5
            peer(tmp_path, "export", loop.home, loop.home / "exported")
            exported = load_file(loop.home / "exported" / "model.safetensors")
            trained = load_file(loop.home / saved / "model.safetensors")
            assert exported.keys() == trained.keys()
            assert all(torch.equal(trained[name], tensor) for name, tensor in exported.items())

    asyncio.run(main())


@pytest.mark.parametrize("example", ["own_model.py", "lora.py"])
def test_a_run_of_a_custom_model_is_founded_served_and_trained(tmp_path: Path, example: str) -> None:
    run = tmp_path / "run"
    command = [sys.executable, str(EXAMPLES / example), "found", str(run)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=DEADLINE_S)
    signed = load_signed(run / "run.toml")

    async def main() -> None:
        node = Daemon("node", run)
        ticket = await start_bootstrap(node, run / "run.toml", min_peers=2)
        loops = list[Loop]()
        for name in ("first", "second"):
            volunteer = identities.load_or_create(Home(tmp_path / name).identity)
            invitation = tmp_path / f"{name}.invitation"
            words = "ticket", "invite", volunteer.peer_id, "--run", run / "run.toml", "--home", run
            invitation.write_text(peer(tmp_path, *words))
            loops.append(Loop(tmp_path / name, ticket, signed.run_id, f"@{invitation}", example=example))
        try:
            for loop in loops:
                await until(lambda loop=loop: loop.process.poll() is not None, loop)
        finally:
            for loop in loops:
                loop.process.kill()
                loop.process.wait()
            await node.stop(10.0)
        for loop in loops:
            assert loop.process.returncode == 0, loop.output
            assert loop.exchanged >= 5
            assert loop.imbalance(signed.manifest.model.parameters) == 0
            losses = [float(loss) for loss in re.findall(r"loss (?:is )?([\d.]+)", loop.output)]
            assert losses[-1] < losses[0], loop.output
        exported = load_file(exported_from(tmp_path, loops[0]) / "model.safetensors")
        assert sum(tensor.numel() for tensor in exported.values()) == signed.manifest.model.parameters

    asyncio.run(main())


def exported_from(folder: Path, loop: Loop) -> Path:
    peer(folder, "export", loop.home, folder / "exported", "--format", "safetensors")
    return folder / "exported"
