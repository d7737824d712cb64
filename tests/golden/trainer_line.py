"""Records all messages between daemon and trainer during a trainer's life, to freeze their shapes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from peer.clock.monotonic import boottime
from peer.errors import DataError, TrainerDied
from peer.ports.trainer import Merge, WorkRequest
from peer.protocol.messages import RoundKey
from peer.protocol.model.fragments import cut
from peer.run.sections import DataSection, LlamaSection, TrainSection
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.trainer.data import BLOCK_BYTES
from peer.trainer.models.llama import first_params, layout_of
from tests.golden.shapes import Shape, both, shape

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
)
LAYOUT = cut(layout_of(MODEL).tensors, fragments=2, pattern="strided")
PATIENCE_S = 120.0


class Overheard:
    """Records the lines in both directions, at asyncio's own streams, so that it is independent of the code that uses
    them."""

    def __init__(self) -> None:
        self.said: dict[str, Shape] = {}
        """Message type -> shape."""
        self.writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, str] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        write, readline = asyncio.StreamWriter.write, asyncio.StreamReader.readline

        def written(stream: asyncio.StreamWriter, data: bytes) -> None:
            self.writer = stream
            self._from_daemon(json.loads(data))
            write(stream, data)

        async def read(stream: asyncio.StreamReader) -> bytes:
            line = await readline(stream)
            if line:
                self._from_trainer(json.loads(line))
            return line

        with (
            mock.patch.object(asyncio.StreamWriter, "write", written),
            mock.patch.object(asyncio.StreamReader, "readline", read),
        ):
            yield

    def _from_daemon(self, message: dict[str, Any]) -> None:
        op = message.get("op", "the opening")
        if "id" in message:
            self._asked[message["id"]] = op
        self._note(f"daemon: {op}", message)

    def _from_trainer(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._note(f"trainer: to {self._asked[message['id']]}, {list(message)[1]}", message)
        else:
            if "progress" in message:  # each position of this list has its own meaning
                message = {"progress": {str(at): value for at, value in enumerate(message["progress"])}}
            self._note(f"trainer: {next(iter(message))}", message)

    def _note(self, what: str, message: dict[str, Any]) -> None:
        self.said[what] = both(self.said.get(what, "null"), shape(message))


def config(data: Path) -> TrainerConfig:
    return TrainerConfig(
        model=MODEL,
        data=DataSection(kind="text"),
        train=TrainSection(context=16, batch=2, total_rounds=100, eval_windows=8),
        data_dir=str(data),
        sync_every=200,
        seed=1,
        peer_id="a",
        device="cpu",
        micro_batch=1,
        activation_bytes=2**30,
    )


def overhear(folder: Path) -> dict[str, Shape]:
    """Return the shapes of all messages of one trainer's life, sorted by message type."""
    data, home, saved = folder / "data", folder / "home", folder / "saved"
    for one in (data, home, saved):
        one.mkdir()
    (data / "a.txt").write_bytes((b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    overheard = Overheard()
    with overheard.listening():
        asyncio.run(_life(overheard, home, data, saved))
    return dict(sorted(overheard.said.items()))


async def _life(overheard: Overheard, home: Path, data: Path, saved: Path) -> None:
    first = first_params(MODEL, 1, LAYOUT)
    trainer = TrainerClient(home, LAYOUT, config(data))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await trainer.start(first, 0, None)
            work = await trainer.work(WorkRequest(RoundKey(0, 0), 3, None, hold=True))
            await trainer.apply(work.key, work.params.clone(), work.processed, 1)
            until = boottime() + 0.2
            work = await trainer.work(WorkRequest(RoundKey(1, 1), None, until, False, 0.5, 3, 1.0))
            shift = asyncio.create_task(trainer.apply(work.key, work.params.clone(), 0, 2, Merge(shift=True)))
            await shift
            await trainer.apply(work.key, work.params.clone(), work.processed, 2, Merge(0.5, 1, until))
            await trainer.evaluate(first)
            await trainer.evaluate(None)
            trainer.release(work.key)
            trainer.hold()
            await trainer.save(saved)
            with pytest.raises(OSError, match="missing"):
                await trainer.save(saved / "missing")
            await trainer.stop()
            await trainer.start(first, 2, saved)
            assert overheard.writer is not None
            overheard.writer.write(b'{"op": "nonsense"}\n')  # no trainer understands it: any defect ends like this
            with pytest.raises(TrainerDied, match="nonsense"):
                await trainer.work(WorkRequest(RoundKey(2, 0), 10**9, None, hold=True))
            await trainer.stop()
            trainer = TrainerClient(home, LAYOUT, config(data / "nowhere"))
            with pytest.raises(DataError):
                await trainer.start(first, 0, None)
    finally:
        await trainer.stop()
