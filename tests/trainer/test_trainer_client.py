"""The client with real trainer processes. Starting one takes seconds, so each test checks several things."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.clock.monotonic import boottime
from peer.errors import DataError, TrainerDied
from peer.ports.trainer import Merge, WorkRequest
from peer.protocol.messages import RoundKey
from peer.run.sections import DataSection, LlamaSection, TrainSection
from peer.trainer.arena import Arena, CounterFile
from peer.trainer.client import TrainerClient, TrainerConfig
from peer.trainer.data import BLOCK_BYTES
from peer.trainer.models.llama import first_params, layout_of

pytestmark = pytest.mark.processes

MODEL = LlamaSection(hidden_size=32, intermediate_size=48, num_hidden_layers=2)
LAYOUT = layout_of(MODEL)
PATIENCE_S = 60.0
TOKENS = 4 * 32


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes((b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def config(data: Path | None, **train: Any) -> TrainerConfig:
    return TrainerConfig(
        model=MODEL,
        data=DataSection(kind="text"),
        train=TrainSection.model_validate({"context": 32, "batch": 4, "total_rounds": 4, "eval_windows": 16} | train),
        sync_every=30,
        seed=1,
        peer_id="a",
        data_dir=str(data) if data else None,
        device="cpu",
    )


def work_for(steps: int, round_: int = 0) -> WorkRequest:
    return WorkRequest(RoundKey(round_, 0), steps, None, hold=True)


def test_a_life_with_two_deaths(home: Path, data: Path, tmp_path: Path) -> None:
    trainer = TrainerClient(home, LAYOUT, config(data))
    first = first_params(MODEL, 1)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(TrainerDied, match="never started"):
                await trainer.evaluate(first)
            info = await trainer.start(first, 0, None)
            assert (info.device, info.tokens_per_step) == ("cpu", TOKENS)
            assert "cpu" in info.device_reason
            _is_at_normal_priority(trainer.pid)
            await _trains_and_learns(trainer, first)
            await _holds_when_work_is_cancelled(trainer, tmp_path)
            await _death_is_named(trainer)
            await _lives_again(trainer, first)
            await _tells_what_it_died_of(trainer)
            await trainer.stop()
            await trainer.stop()

    asyncio.run(scenario())


def _is_at_normal_priority(pid: int | None) -> None:
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)


async def _trains_and_learns(trainer: TrainerClient, first: torch.Tensor) -> None:
    before = await trainer.evaluate(first)
    assert before.tokens == 16 * 32
    assert trainer.pid is not None
    os.kill(trainer.pid, signal.SIGINT)  # Ctrl+C reaches it too: the daemon decides
    work = await trainer.work(work_for(3))
    assert (work.steps, work.tokens, work.processed) == (3, 3 * TOKENS, 3 * TOKENS)
    assert work.params.shape == first.shape
    assert not torch.equal(work.params, first)
    assert 5.0 < work.loss < 6.5
    assert trainer.progress.tokens_per_s > 0
    await trainer.apply(work.key, work.params.clone(), work.processed, 1)
    assert trainer.counters().base == (3 * TOKENS,)
    work = await trainer.work(work_for(40, 1))
    after = await trainer.evaluate(work.params.clone())
    assert after.loss < before.loss - 1.0
    assert work.tokens == 40 * TOKENS


async def _holds_when_work_is_cancelled(trainer: TrainerClient, folder: Path) -> None:
    endless = asyncio.create_task(trainer.work(work_for(10**9, 2)))
    await asyncio.sleep(0)
    endless.cancel()
    await asyncio.wait({endless})
    await trainer.save(folder)
    tokens = trainer.counters().tokens
    assert json.loads((folder / "trainer.json").read_text())["tokens"] == tokens
    again = await trainer.work(work_for(0, 2))
    assert again.processed == tokens, "nothing was trained since the save"
    with pytest.raises(OSError, match="missing"):
        await trainer.save(folder / "missing" / "folder")


async def _death_is_named(trainer: TrainerClient) -> None:
    assert trainer.pid is not None
    working = asyncio.create_task(trainer.work(work_for(10**9, 3)))
    await asyncio.sleep(0)
    os.kill(trainer.pid, signal.SIGKILL)
    with pytest.raises(TrainerDied, match="SIGKILL"):
        await working
    with pytest.raises(TrainerDied, match="SIGKILL"):
        await trainer.apply(RoundKey(3, 0), first_params(MODEL, 1), 0, 4)
    counters = trainer.counters()
    assert counters.tokens >= 43 * TOKENS, "they survive"
    assert counters.base == (3 * TOKENS,)


async def _lives_again(trainer: TrainerClient, first: torch.Tensor) -> None:
    tokens = trainer.counters().tokens
    await trainer.start(first, 3, None)
    assert trainer.counters().tokens == tokens
    assert trainer.counters().base == (tokens,), "what was outstanding is dropped"
    until = boottime() + 0.3
    work = await trainer.work(WorkRequest(RoundKey(3, 0), None, until, hold=True))
    assert work.steps > 0
    assert work.processed == tokens + work.tokens


async def _tells_what_it_died_of(trainer: TrainerClient) -> None:
    """Check that the daemon reports why its trainer crashed. A malformed request stands for any defect."""
    assert trainer._child is not None
    with pytest.raises(TrainerDied, match="KeyError: 'nonsense'"):
        await trainer._child.call("nonsense")


def test_what_lies_in_the_trainers_memory_is_used_where_it_lies(home: Path, data: Path) -> None:
    """The daemon's outer state may be in the arena. The trainer must use the values that are there when it reads
    them."""
    trainer = TrainerClient(home, LAYOUT, config(data))
    first = first_params(MODEL, 1)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await trainer.prepare()
            outer = trainer.outer_params
            outer.copy_(first)
            await trainer.start(outer, 0, None)
            before = await trainer.evaluate(outer)
            work = await trainer.work(work_for(3))
            trained = work.params.clone()
            outer.copy_(trained)
            await trainer.apply(work.key, outer, work.processed, 1)
            assert (await trainer.evaluate(outer)).loss < before.loss
            difference = torch.full_like(first, 0.25)
            await trainer.apply(work.key, difference, 0, 0, Merge(shift=True))
            assert torch.equal(outer, trained), "a difference goes another way"
            work = await trainer.work(work_for(0, 1))
            assert torch.equal(work.params, trained + 0.25)
            await trainer.stop()

    asyncio.run(scenario())
    assert not list(home.glob("shift*"))


def test_what_a_person_can_mend_comes_back_typed(home: Path, tmp_path: Path) -> None:
    trainer = TrainerClient(home, LAYOUT, config(tmp_path / "nowhere"))

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(DataError, match="nowhere") as caught:
                await trainer.start(first_params(MODEL, 1), 0, None)
            assert "--data" in caught.value.fix
            with pytest.raises((TrainerDied, DataError)):
                await trainer.work(work_for(1))

    asyncio.run(scenario())


def test_it_ends_with_its_daemon_even_in_the_middle_of_something_long(home: Path, data: Path) -> None:
    """The test plays the daemon's end by closing the socket, as the kernel does for a killed process."""
    CounterFile(home, 1)
    Arena(home, LAYOUT, create=True).inn.copy_(first_params(MODEL, 1))
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    command = [sys.executable, "-m", "peer.trainer", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=(theirs.fileno(),), cwd=Path(__file__).parents[2]) as process:
        theirs.close()
        opening = {
            "config": config(data, eval_windows=2**16).model_dump(mode="json"),
            "tensors": [tensor.name for tensor in LAYOUT.tensors],
            "shapes": [tensor.shape for tensor in LAYOUT.tensors],
            "fragments": LAYOUT.fragments,
            "folder": str(home),
        }
        start = {"id": 1, "op": "start", "round": 0, "resume": None}
        ours.sendall(b"".join(json.dumps(m).encode() + b"\n" for m in (opening, start)))
        with ours.makefile("rb") as answers:
            while b'"id": 1' not in (answer := answers.readline()):
                assert answer, "it ended too early"
            ours.sendall(json.dumps({"id": 2, "op": "evaluate"}).encode() + b"\n")  # takes half a minute
        ours.close()
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
