"""`peer bench trainer` with a real child process and the tiny model."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from peer.cli.bench import command
from peer.errors import ManifestError, UsageError
from peer.lab.bench import trainer as bench
from peer.node.new_run import make_run
from peer.ports.trainer import Counters, WorkRequest
from peer.run.manifest import default_text
from peer.run.schema import parse_manifest
from peer.run.sections import ArtifactRef, TransformersSection
from peer.trainer.client import TrainerClient
from tests.support.made_home import KEY
from tests.support.sandbox_here import open_here


class Warming:
    """A trainer whose first bursts of steps are slower."""

    pid = 2**22 + 1  # no process has this id

    def __init__(self, *step_s: float) -> None:
        self._step_s = itertools.chain(step_s, itertools.repeat(step_s[-1]))
        self._done, self._seconds = 0, 0.0
        self.bursts = 0

    def counters(self) -> Counters:
        return Counters(self._done * 8, self._done, (0,), self._seconds, 0.0)

    async def work(self, request: WorkRequest) -> None:
        assert request.steps is not None
        self.bursts += 1
        self._done += request.steps
        self._seconds += request.steps * next(self._step_s)


def test_nothing_is_measured_before_two_bursts_took_as_long() -> None:
    fake = Warming(3.0, 2.0, 1.0, 1.01)

    asyncio.run(bench._warm(cast(TrainerClient, fake)))

    assert fake.bursts == 4


def test_a_burst_counts_what_the_trainer_counts() -> None:
    found = asyncio.run(bench.burst(cast(TrainerClient, Warming(0.25)), 7))

    assert (found.steps, found.step_s) == (7, 0.25)


def test_the_parts_are_all_the_steps() -> None:
    assert bench._parts(50) == [10] * bench.BURSTS
    assert sum(bench._parts(13)) == 13
    assert min(bench._parts(bench.BURSTS)) == 1


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="--steps 1 "):
        bench.measure(parse_manifest(default_text().encode()), 1)


def test_texts_that_the_run_does_not_read_are_refused() -> None:
    result = CliRunner().invoke(command, ["trainer", "--data", "texts"])
    assert isinstance(result.exception, UsageError)
    assert "brings its own data (stdlib)" in str(result.exception)


def test_a_foreign_model_is_refused_with_what_to_do() -> None:
    file = ArtifactRef(digest="a" * 64, size=1)
    foreign = TransformersSection(kind="transformers", parameters=1, config=file, layout=file)
    manifest = parse_manifest(default_text().encode()).model_copy(update={"model": foreign})

    with pytest.raises(UsageError) as caught:
        bench.measure(manifest, 5)

    assert "peer doctor TICKET" in caught.value.fix


@pytest.mark.processes
@pytest.mark.nightly
def test_a_foreign_model_is_measured_with_the_files_beside_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_here(monkeypatch)
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    own = tmp_path / "own.toml"
    make_run(own, KEY, ["context=32", "batch=2"], lambda line: None, model=tmp_path / "config.json")
    words = ["trainer", "--json", "--steps", "5", "--manifest", str(own)]
    found = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).output)
    assert (found["steps"], found["tokens_per_step"]) == (5, 64)
    shutil.rmtree(tmp_path / "own.artifacts")
    missing = CliRunner().invoke(command, words)
    assert isinstance(missing.exception, ManifestError)
    assert "does not hold the run's config, layout" in str(missing.exception)


@pytest.mark.processes
def test_the_command_tells_the_rates_of_a_real_trainer() -> None:
    tiny = ["--set", "model.hidden_size=16", "--set", "model.num_hidden_layers=1", "--set", "train.batch=2"]
    result = CliRunner().invoke(command, ["trainer", "--json", "--steps", "5", *tiny], catch_exceptions=False)

    found: dict[str, Any] = json.loads(result.output)
    assert found["steps"] == 5
    assert found["tokens_per_step"] == 2 * 64
    assert 0 < found["step_s"] <= found["step_s_slowest"]
    # Time between the steps counts for the rate of tokens, not for a step.
    assert 0 < found["tokens_per_s"] <= 1.0001 * found["tokens_per_step"] / found["step_s"]
    assert 0 < found["utilization"] < 1
    assert found["device"] == "cpu"
