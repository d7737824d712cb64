"""`peer eval` of homes and checkpoint folders: it gives the trainer's own numbers, or an error that names the damaged
file."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.run.files.artifact_folder import needed_artifacts
from peer.trainer.config import TrainerConfig
from peer.trainer.data import load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from tests.support.made_home import SMALL, TRAIN, MadeHome, command, made_home
from tests.support.sandbox_here import open_here

STREAMED = ("sync.preset=streaming-noloco", "sync.fragments=2", "sync.fragment_layout=strided")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> MadeHome:
    """Make a home whose layout has the tensors in another order than the model."""
    made = made_home(tmp_path_factory.mktemp("streamed"), *SMALL, *TRAIN, *STREAMED)
    made.save(made.first(noise=0.3), 5)
    made.save(made.first(), 7)
    return made


def evaluated(*arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(command("eval", *arguments, "--json", "--device", "cpu"))
    return answer


def trainers_own(made: MadeHome, params: torch.Tensor) -> float:
    config = TrainerConfig.of(made.signed.manifest, "a", device="cpu")
    data = load_corpus(config.data, None, config.train.context)
    return InnerLoop(config, made.layout, choose_device("cpu"), data, params).evaluate(params).loss


def test_a_home_has_the_loss_that_its_trainer_would_tell(home: MadeHome) -> None:
    found = evaluated(home.path)
    assert found.keys() == {"loss", "bits_per_byte", "perplexity", "tokens", "run_id", "round", "donors", "left_out"}
    assert found["loss"] == pytest.approx(trainers_own(home, home.first()), abs=1e-6)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert (found["tokens"], found["round"]) == (8 * 32, 7)
    assert found["run_id"] == home.signed.run_id.hex()


def test_a_checkpoint_folder_is_found_in_the_home_above_it(home: MadeHome) -> None:
    older, newer = sorted(home.run.checkpoints.iterdir())
    assert evaluated(newer) == evaluated(home.path)
    found = evaluated(older)
    assert found["round"] == 5
    assert found["loss"] == pytest.approx(trainers_own(home, home.first(noise=0.3)), abs=1e-6)
    assert found["loss"] > evaluated(newer)["loss"] + 0.1


def test_a_checkpoint_elsewhere_needs_the_manifest(home: MadeHome, tmp_path: Path) -> None:
    moved = tmp_path / "checkpoint-9"
    shutil.copytree(home.run.checkpoints / "checkpoint-2", moved)
    assert "does not lie in a home" in command("eval", moved, code=24)
    assert evaluated(moved, "--manifest", home.manifest_file) == evaluated(home.path)


def test_several_sources_give_their_mean(home: MadeHome) -> None:
    older, newer = sorted(home.run.checkpoints.iterdir())
    mean = (home.first() + home.first(noise=0.3)) / 2
    found = evaluated(older, newer)
    assert found["round"] == 5
    assert found["loss"] == pytest.approx(trainers_own(home, mean), abs=1e-5)


def test_nothing_is_written_in_a_home(home: MadeHome) -> None:
    def facts() -> list[tuple[str, int]]:
        return sorted((str(path), path.lstat().st_mtime_ns) for path in home.path.rglob("*"))

    before = facts()
    evaluated(home.path)
    assert facts() == before


def test_own_texts_are_evaluated_on_wherever_they_come_from(home: MadeHome, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("wie viele Worte braucht ein Satz? " * 60)
    found = evaluated(home.path, "--data", tmp_path)
    assert found["tokens"] == 8 * 32
    assert found["loss"] != evaluated(home.path)["loss"]
    (tmp_path / "a.txt").write_text("short")
    assert "5 tokens" in command("eval", home.path, "--data", tmp_path, code=22)


# -- what is wrong is named --------------------------------------------------------------------------------------------


def test_a_damaged_state_is_named_with_its_digest(home: MadeHome, tmp_path: Path) -> None:
    copy = tmp_path / "home"
    shutil.copytree(home.path, copy)
    file = next(copy.rglob("checkpoint-2/outer.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    found = command("eval", file.parent, code=24)
    assert "outer.safetensors is damaged: its digest is" in found
    assert evaluated(copy)["round"] == 5, "a home has an older one"
    shutil.rmtree(copy.joinpath("runs", home.run.path.name, "checkpoints", "checkpoint-1"))
    assert "outer.safetensors is damaged" in command("eval", copy, code=24)


def test_a_state_that_is_no_number_is_refused(home: MadeHome, tmp_path: Path) -> None:
    made = made_home(tmp_path, *SMALL, *TRAIN)
    params = made.first()
    params[3] = math.nan
    made.save(params)
    assert "NaN" in command("eval", made.path, code=24)


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("nowhere", 24, "neither a folder nor a ticket"),
        ("peerswrmaaaa", 21, "ticket"),
        ("x" * 3000, 24, "neither"),
        ("@nowhere", 21, "cannot read a ticket"),
    ],
)
def test_a_source_that_is_none_is_told(source: str, code: int, words: str) -> None:
    assert words in command("eval", source, code=code)


def test_homes_without_a_model_are_told(home: MadeHome, tmp_path: Path) -> None:
    assert "has no runs" in command("eval", tmp_path, code=24)
    made = made_home(tmp_path, *SMALL, *TRAIN)
    assert "there is none yet" in command("eval", made.path, code=24)
    made.save(made.first())
    assert "different runs" in command("eval", made.path, home.path, code=24)
    (made.path / "runs" / "ff").mkdir()
    shutil.copytree(home.run.path, made.path / "runs" / home.run.path.name)
    assert "several runs" in command("eval", made.path, code=2)
    assert evaluated(made.path, "--run", home.run.path.name[:6])["round"] == 7


# -- files of the run --------------------------------------------------------------------------------------------------


def test_a_foreign_model_on_shards_of_its_run(
    shard_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_here(monkeypatch)
    config = tmp_path / "gpt2.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 400}))
    made = made_home(tmp_path, *TRAIN, model=config, data=shard_folder)
    made.save(made.first())
    found = evaluated(made.path)
    assert found["loss"] == pytest.approx(math.log(400), abs=0.3)
    assert 1.0 < found["loss"] / math.log(2) / found["bits_per_byte"] < 4.0
    assert evaluated(made.path, "--data", shard_folder) == found
    texts = evaluated(made.path, "--data", shard_folder.parent / "texts")
    assert texts["loss"] == pytest.approx(math.log(400), abs=0.3)
    assert texts["loss"] != found["loss"]
    for name in ("config", "layout"):
        file = made.path / "artifacts" / needed_artifacts(made.signed.manifest)[name].digest
        raw = file.read_bytes()
        file.write_bytes(raw[:-1] + b"x")
        assert f"the run's {name}" in command("eval", made.path, code=24)
        assert evaluated(made.path, "--manifest", made.manifest_file) == found, "it lies beside the manifest"
        file.unlink()
        assert "is not in" in command("eval", made.path, code=24)
        file.write_bytes(raw)
