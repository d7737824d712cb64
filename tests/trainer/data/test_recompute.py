"""Another process can recompute every batch of a real trainer from manifest, index and journal alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from blake3 import blake3

from peer.errors import TrainerDied
from peer.identity import Identity
from peer.node.shard_supply import ShardSupply
from peer.observe import events
from peer.observe.journal import Journal
from peer.ports.trainer import WorkRequest, WorkSnapshot
from peer.protocol.messages import PeerId, RoundKey
from peer.run.files.artifact import ArtifactRef
from peer.run.files.token_index import TokenIndex, parse_index
from peer.run.manifest import Manifest, load_signed, sign_text
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.trainer.batch_log import TRAIL, LoggedStep, read_batch_log
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.trainer.models.llama import first_params
from tests.trainer.data.test_token_shards import built

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

ME = "peer-1"
STEPS = 4
PATIENCE_S = 120.0
MANIFEST = """format = 2
[model]
vocab_size = 1000
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
[tokenizer]
kind = "file"
vocab_size = 1000
end_token = 0
file = {{ digest = "{zeros}", size = 1 }}
[data]
kind = "tokens"
index = {{ digest = "{index}", size = {size} }}
[train]
context = 16
batch = 5
eval_windows = 4
[sync]
clock = "steps"
sync_every = {steps}
"""


@dataclass
class Cache:
    """Plays the other peers: they hold the files of a folder, except the shards in `gone`."""

    folder: Path
    index: TokenIndex
    gone: set[int] = field(default_factory=set)

    def _path(self, digest: str) -> Path:
        numbers = [number for number, entry in enumerate(self.index.train) if entry.digest == digest]
        return self.folder / (f"train-{numbers[0]:05}.tokens" if numbers else "holdout-00000.tokens")

    def has(self, digest: str) -> bool:
        return self._path(digest).name not in {f"train-{number:05}.tokens" for number in self.gone}

    def holders(self, ref: ArtifactRef) -> Sequence[PeerId]:
        return ()

    async def ask(self, refs: Sequence[ArtifactRef]) -> None:
        """Do nothing: there are no other peers to query."""

    async def fetch(self, ref: ArtifactRef, timeout_s: float) -> Path:
        return self._path(ref.digest)

    @contextmanager
    def holding(self, digest: str) -> Iterator[None]:
        yield

    def forget(self, digest: str) -> None:
        raise AssertionError("all of it is right")


class Run:
    """The rounds of a peer without partners. Each is a solo step that keeps the trainer's own values."""

    def __init__(self, folder: Path) -> None:
        self.data, self.home, self.saved = (folder / name for name in ("data", "home", "saved"))
        for one in (self.data, self.home, self.saved):
            one.mkdir()
        built(self.data, shards=6)
        raw = (self.data / "index.json").read_bytes()
        self.path = folder / "run.toml"
        text = MANIFEST.format(zeros="0" * 64, index=blake3(raw).hexdigest(), size=len(raw), steps=STEPS)
        sign_text(text, Identity.generate(), self.path)
        self.manifest: Manifest = load_signed(self.path).manifest
        self.cache = Cache(self.data, parse_index(raw))
        self.journal = Journal(folder / "journal.jsonl", lambda: 1000.0)
        self.layout = layout_for(self.manifest.model, resolve(self.manifest.sync))
        self.expected: list[str] = []

    @asynccontextmanager
    async def life(self, resume: Path | None, round_: int) -> AsyncIterator[TrainerClient]:
        """Play one daemon for some rounds, and kill its trainer in the middle of a step."""
        index = str(self.data / "index.json")
        config = TrainerConfig.of(self.manifest, ME, device="cpu", data_index=index, trail=True, micro_batch=1)
        supply = ShardSupply(self.cache.index, self.cache, self.cache, self.journal.append, retry_s=0.0)
        trainer = TrainerClient(self.home, self.layout, config, shards=supply)
        try:
            await trainer.start(first_params(self.manifest.model, 1, self.layout), round_, resume)
            yield trainer
            await self._kill(trainer, round_ + 10)
        finally:
            await trainer.stop()
            await supply.close()

    async def _kill(self, trainer: TrainerClient, round_: int) -> None:
        steps = trainer.counters().steps
        work = asyncio.create_task(trainer.work(WorkRequest(RoundKey(round_, 0), 10**9, None, hold=True)))
        while trainer.counters().steps <= steps + 2:
            await asyncio.wait({work}, timeout=0.01)
        assert trainer.pid is not None
        os.kill(trainer.pid, signal.SIGKILL)
        with pytest.raises(TrainerDied):
            await work

    async def round(self, trainer: TrainerClient, round_: int) -> WorkSnapshot:
        before = len(self.trail())
        work = await trainer.work(WorkRequest(RoundKey(round_, 0), STEPS, None, hold=True))
        self.journal.append(ended(work))
        trained = self.trail()[before:]
        assert len(trained) == STEPS
        self.expected += [line_of(round_, step) for step in trained]
        await trainer.apply(work.key, work.params.clone(), work.processed, round_ + 1)
        return work

    def trail(self) -> list[LoggedStep]:
        path = self.home / TRAIL
        return list(read_batch_log(path)) if path.exists() else []

    def again(self) -> list[str]:
        """Return the lines that the command prints in another process."""
        command = (sys.executable, "-P", "-m", "peer.trainer.data.recompute", str(self.path))
        given = (str(self.journal.path), ME, str(self.data))
        done = subprocess.run([*command, *given], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def line_of(round_: int, step: LoggedStep) -> str:
    begin = step.begin
    return f"{round_} 0 {begin.epoch}.{begin.place}.{begin.window} {step.batch}"


def ended(work: WorkSnapshot) -> events.RoundEnded:
    details = work.details
    return events.RoundEnded(
        round=work.key.round,
        fragment=0,
        outcome="solo",
        partner="",
        reason="alone",
        applied=0,
        dropped=0,
        upto=work.processed,
        steps=work.steps,
        bytes_sent=0,
        bytes_received=0,
        seconds=0.0,
        data_from=details.data_from,
        data_to=details.data_to,
        data_skipped=details.data_skipped,
    )


async def played(run: Run) -> None:
    async with run.life(None, 0) as trainer:
        await run.round(trainer, 0)
        run.cache.gone = {1, 4}
        first = [await run.round(trainer, round_) for round_ in (1, 2, 3)]
        await trainer.save(run.saved)
        lost = await run.round(trainer, 4)
    run.cache.gone = {2}
    async with run.life(run.saved, 4) as trainer:
        again = await run.round(trainer, 4)
        assert again.details.data_from == first[-1].details.data_to == lost.details.data_from
        last = await run.round(trainer, 5)
    async with run.life(None, 6) as trainer:  # without a checkpoint: no work of a snapshot is done twice
        assert (await run.round(trainer, 6)).details.data_from == last.details.data_to
        await run.round(trainer, 7)


def test_another_process_draws_the_same_batches_over_kills_and_skipped_shards(tmp_path: Path) -> None:
    run = Run(tmp_path)

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await played(run)

    asyncio.run(bounded())
    skipped = [line for line in run.journal.path.read_text().splitlines() if '"shard_skipped"' in line]
    assert len(skipped) >= 3
    assert len(run.expected) == 9 * STEPS
    assert run.again() == run.expected
