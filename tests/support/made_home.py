"""Makes a home with checkpoints of a run, without a swarm."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

from peer.cli.main import peer
from peer.identity import Identity
from peer.node.new_run import make_run
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.protocol.model.layout import Layout
from peer.run.files.artifact_folder import artifact_files, needed_artifacts, tensors_beside
from peer.run.files.token_folder import shard_files
from peer.run.files.token_index import parse_index
from peer.run.home import Home, RunFolder
from peer.run.manifest import SignedManifest, store_signed
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.state.checkpoint import CheckpointStore

KEY = Identity.generate()
SMALL = (
    *("model.hidden_size=16", "model.intermediate_size=24", "model.num_hidden_layers=2"),
    *("model.num_attention_heads=2", "model.num_key_value_heads=1", "model.max_position_embeddings=32"),
)
"""Settings of a small built-in model."""
TRAIN = ("context=32", "eval_windows=8")


@dataclass(frozen=True)
class MadeHome:
    """A home, its run, and the operator's manifest file with the run's artifacts beside it."""

    path: Path
    signed: SignedManifest
    manifest_file: Path
    layout: Layout
    run: RunFolder

    def save(self, params: torch.Tensor, round_: int = 7, **facts: Any) -> Path:
        """Write a checkpoint and return its folder."""
        store = CheckpointStore(self.run.checkpoints)
        told = {"round": round_, "tokens": 4096, "peer_id": KEY.peer_id, **facts}
        draft = store.begin()
        return store.commit(
            draft, params, torch.zeros_like(params), self.signed.run_id, self.layout.digest(), told
        ).folder

    def first(self, noise: float = 0.0, seed: int = 0) -> torch.Tensor:
        """Return the run's first parameters plus some noise."""
        tensors = tensors_beside(self.manifest_file, self.signed.manifest)
        init = artifact_files(self.manifest_file).get(self.signed.manifest.init)
        files = FirstFiles(tensors, self._config(), init, self.path)
        params = first_state(self.signed.manifest, self.layout, None, lambda text: None, files).params
        return params + noise * torch.randn(params.shape, generator=torch.Generator().manual_seed(seed))

    def _config(self) -> Path | None:
        ref = needed_artifacts(self.signed.manifest).get("config")
        return None if ref is None else artifact_files(self.manifest_file)[ref.digest]


def made_home(folder: Path, *settings: str, name: str = "home", **files: Path) -> MadeHome:
    """Make a run in the folder, and a home with the run's files. `files`: as in `make_run`."""
    manifest_file = folder / "run.toml"
    quiet: Callable[[str], None] = lambda text: None  # noqa: E731 - a parameter's value
    signed = make_run(manifest_file, KEY, settings, quiet, **files)
    home = Home(folder / name)
    run = home.run(signed.run_id)
    store_signed(run.manifest, signed)
    home.artifacts.mkdir()
    for digest, source in artifact_files(manifest_file).items():
        shutil.copyfile(source, home.artifacts / digest)
    if (data := files.get("data")) is not None:
        index = parse_index((data / "index.json").read_bytes())
        for digest, source in shard_files(index, data).items():
            shutil.copyfile(source, home.artifacts / digest)
    tensors = tensors_beside(manifest_file, signed.manifest)
    layout = layout_for(signed.manifest.model, resolve(signed.manifest.sync), tensors)
    return MadeHome(home.path, signed, manifest_file, layout, run)


def command(*arguments: object, code: int = 0) -> str:
    """Run a command of `peer` in this process; return its standard output."""
    done = CliRunner().invoke(peer, [str(one) for one in arguments])
    if code:
        assert getattr(done.exception, "exit_code", done.exit_code) == code, done.output
        return str(done.exception)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout


def shards(folder: Path, vocabulary: int = 400) -> Path:
    """Train a tokenizer on a few files of the standard library, and build shards with it; return their folder."""
    texts = folder / "texts"
    texts.mkdir()
    for source in sorted(Path(shutil.__file__).parent.glob("[a-b]*.py")):
        shutil.copyfile(source, texts / source.name)
    tokenizer, data = folder / "tokenizer.json", folder / "data"
    command("tokenizer", "train", texts, "--vocab", vocabulary, "--out", tokenizer)
    command("data", "build", texts, "--tokenizer", tokenizer, "--out", data)
    return data
