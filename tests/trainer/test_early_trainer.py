"""A trainer process can be started before its run is known."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from peer.errors import DataError
from peer.run.sections import DataSection, LlamaSection, TrainSection
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.trainer.data import BLOCK_BYTES
from peer.trainer.models.llama import first_params, layout_of
from peer.trainer.prestart import early_trainer
from peer.trainer.subprocess import LOG

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
)


@pytest.mark.processes
def test_it_is_put_to_work_and_only_once(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    data.mkdir()
    (data / "a.txt").write_bytes((b"the quick brown fox. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    config = TrainerConfig(
        model=MODEL,
        data=DataSection(kind="text"),
        train=TrainSection(context=16, batch=4, total_rounds=4, eval_windows=4),
        sync_every=30,
        seed=1,
        peer_id="a",
        data_dir=str(data),
        device="cpu",
        low_priority=True,
    )

    async def scenario() -> None:
        async with asyncio.timeout(180), early_trainer(home, 1) as early:
            assert early is not None
            assert not (home / LOG).exists(), "another daemon may hold this home"
            trainer = TrainerClient(home, layout_of(MODEL), config, early)
            await trainer.prepare()
            info = await trainer.start(first_params(MODEL, 1), 0, None)
            assert trainer.pid == early.pid
            assert {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in psutil.Process(early.pid).threads()} == {
                10
            }
            assert "nice 10, the disk only when it is idle" in info.device_reason
            assert (home / LOG).exists()
            assert list(info.seconds) == ["torch import", "waiting for the state", "data", "model"]
            assert info.micro_batch == 4
            await trainer.stop()
            assert not early.alive
        assert [path.name for path in home.glob("*.log")] == [LOG]

    asyncio.run(scenario())


@pytest.mark.processes
def test_one_that_is_not_needed_ends_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with asyncio.timeout(90), early_trainer(tmp_path, 1) as early:
            assert early is not None
            assert early.alive
        return early.pid

    pid = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []


def test_where_none_can_be_started_there_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with early_trainer(tmp_path / "missing", 1) as early:
            assert early is None

    asyncio.run(scenario())


@pytest.mark.processes
def test_one_that_is_prepared_tells_at_the_start_what_went_wrong_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    config = TrainerConfig(model=MODEL, data=DataSection(kind="text"), sync_every=30, seed=1, peer_id="a", device="cpu")

    async def scenario() -> None:
        async with asyncio.timeout(180), early_trainer(tmp_path, 1) as early:
            assert early is not None
            trainer = TrainerClient(tmp_path, layout_of(MODEL), config, early)
            os.kill(early.pid, signal.SIGKILL)
            await asyncio.wait({early._watching}, timeout=60)
            await trainer.prepare()
            assert trainer.pid not in (None, early.pid)
            with pytest.raises(DataError, match="no folder was given"):
                await trainer.start(first_params(MODEL, 1), 0, None)
            await trainer.prepare()
            prepared = trainer.pid
            assert prepared is not None
            await trainer.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(prepared, 0)

    asyncio.run(scenario())
