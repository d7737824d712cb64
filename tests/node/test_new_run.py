from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from blake3 import blake3
from click.testing import CliRunner
from safetensors.torch import save_file

from peer.aio.threads import inline
from peer.cli.main import peer
from peer.errors import DataError, ManifestError, ModelError, PeerError
from peer.identity import Identity
from peer.joining.artifacts import RunFileStore
from peer.node import new_run
from peer.node.new_run import make_run
from peer.node.operator.bootstrap import OperatorOptions, run_bootstrap
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.observe.progress import WaitProgress, ignore_progress
from peer.run.files.artifact import ArtifactRef
from peer.run.files.artifact_folder import artifact_files, folder_of, needed_artifacts, tensors_beside
from peer.run.files.token_index import ShardEntry, ShardTable, TokenIndex, format_index
from peer.run.manifest import SignedManifest, load_signed
from peer.run.model_layout import layout_for, own_layout
from peer.run.options import NodeOptions
from peer.run.resolve import resolve
from peer.run.sections import LlamaSection, TransformersSection
from peer.state.artifacts.cache import ArtifactCache
from peer.trainer.models import causality
from peer.trainer.models.flat import views_of
from tests.support.sandbox_here import open_here

KEY = Identity.generate()
TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 64}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read foreign files in this process instead of the sandbox."""
    open_here(monkeypatch)


def quiet(note: str) -> None:
    """Discard a progress line."""


def config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(TINY | {"bos_token_id": 0, "eos_token_id": 0} | changes))
    return path


def data(folder: Path) -> Path:
    """Write a folder as `peer data build` does, without the shards, which a manifest does not need."""
    folder.mkdir()
    added = {"id": 3, "content": "<|endoftext|>", "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    raw = json.dumps({"version": "1.0", "model": model, "added_tokens": [added]}).encode()
    (folder / "tokenizer.json").write_bytes(raw)
    shards = [ShardTable([ShardEntry(digest * 32, 100, 2, 300)]) for digest in ("ab", "cd")]
    index = TokenIndex("uint16", 4, 3, blake3(raw).hexdigest(), *shards)
    (folder / "index.json").write_bytes(format_index(index))
    return folder


def run_of(tmp_path: Path, *settings: str, **files: Path) -> tuple[SignedManifest, Path]:
    path = tmp_path / "run.toml"
    return make_run(path, KEY, settings, quiet, **files), path


@pytest.mark.usefixtures("here")
def test_a_run_names_its_files_and_they_lie_beside_it(tmp_path: Path) -> None:
    signed, path = run_of(
        tmp_path, "sync.preset=streaming-noloco", "context=32", model=config(tmp_path), data=data(tmp_path / "data")
    )
    assert load_signed(path) == signed
    manifest = signed.manifest
    assert isinstance(manifest.model, TransformersSection)
    assert (manifest.tokenizer.vocab_size, manifest.tokenizer.end_token, manifest.train.context) == (4, 3, 32)
    wanted = needed_artifacts(manifest)
    assert list(wanted) == ["tokenizer", "index", "config", "layout"]
    assert artifact_files(path).keys() == {artifact.digest for artifact in wanted.values()}
    for digest, file in artifact_files(path).items():
        assert blake3(file.read_bytes()).hexdigest() == digest
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "data",
        "run.toml",
        "run.toml.sig",
        "run.artifacts",
    }
    tensors = tensors_beside(path, manifest)
    assert tensors is not None
    layout = layout_for(manifest.model, resolve(manifest.sync), tensors)
    files = FirstFiles(tensors, artifact_files(path)[manifest.model.config.digest], None, tmp_path)
    one, again = (first_state(manifest, layout, None, quiet, files).params for _ in range(2))
    assert torch.equal(one, again)
    norm = dict(views_of(one, layout))["transformer.ln_f.weight"]
    assert bool((norm == 1).all()), "the run's order is not the model's own"
    assert not list(tmp_path.glob("first_weights*"))


@pytest.mark.usefixtures("here")
def test_a_pretrained_folder_becomes_the_first_state(tmp_path: Path) -> None:
    folder = tmp_path / "pretrained"
    folder.mkdir()
    signed, path = run_of(tmp_path, model=config(folder))
    manifest = signed.manifest
    tensors = tensors_beside(path, manifest)
    own = own_layout(manifest.model, tensors)
    values = torch.arange(own.elements, dtype=torch.float32)
    save_file(
        {name: view.clone() for name, view in views_of(values, own)}, folder / "model.safetensors", {"format": "pt"}
    )
    for old in (path, path.with_name("run.toml.sig")):
        old.unlink()
    folder_of(path).rename(tmp_path / "old")
    signed, path = run_of(tmp_path, model=folder)
    assert signed.manifest.init in artifact_files(path)
    assert np.array_equal(np.fromfile(artifact_files(path)[signed.manifest.init], "<f4"), values.numpy())
    files = FirstFiles(tensors, None, artifact_files(path)[signed.manifest.init])
    assert torch.equal(first_state(signed.manifest, own, None, quiet, files).params, values)
    with pytest.raises(PeerError, match="which this node does not have"):
        first_state(signed.manifest, own, None, quiet, FirstFiles(tensors))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["context=65"], ModelError, "works with 64 and fails with 65"),
        (["context=7"], ManifestError, "train.context"),
        (["lr=-1"], ManifestError, "optimizer.lr"),
        (["max_parameters=1000"], ModelError, "more than the 1,000 parameters"),
        (["hidden_size=8"], ManifestError, "model.hidden_size"),
    ],
)
@pytest.mark.usefixtures("here")
def test_nothing_is_left_of_a_run_that_cannot_be(
    settings: list[str], error: type[PeerError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        run_of(tmp_path, *settings, model=config(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


ROBERTA = {
    "model_type": "roberta",
    "is_decoder": True,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}


@pytest.mark.usefixtures("here")
def test_a_model_that_takes_fewer_tokens_than_its_config_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ROBERTA))
    with pytest.raises(ModelError, match="works with 62 and fails with 63") as caught:
        run_of(tmp_path, "context=64", model=path)
    assert "--set context=62" in caught.value.fix
    signed, _ = run_of(tmp_path, "context=62", model=path)
    assert signed.manifest.train.context == 62


BERT = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 256}


@pytest.mark.usefixtures("here")
def test_no_command_takes_a_model_that_sees_later_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the operator's `manifest new` and `bootstrap` nor the volunteer's `join` and `doctor` may accept it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT))
    with pytest.raises(ModelError, match="BertLMHeadModel sees later tokens"):
        run_of(tmp_path, model=path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]

    with monkeypatch.context() as older:
        older.setattr(causality, "check_causal", lambda model: None)
        signed, file = run_of(tmp_path, model=path)
    options = NodeOptions(home=tmp_path / "home")
    with pytest.raises(ModelError, match="sees later tokens"):
        asyncio.run(run_bootstrap(options, file, OperatorOptions(), quiet))
    artifacts = artifact_files(file)

    class Given:
        async def fetch(self, ref: ArtifactRef, timeout_s: float, progress: WaitProgress, what: str) -> Path:
            return artifacts[ref.digest]

    store = RunFileStore(ArtifactCache(tmp_path / "cache", 10**6), Given(), inline)
    with pytest.raises(ModelError, match="sees later tokens"):
        asyncio.run(store.obtain(signed.manifest, 1.0, ignore_progress))


@pytest.mark.processes
def test_a_tokenizer_that_is_not_the_datas_is_refused(tmp_path: Path) -> None:
    folder = data(tmp_path / "data")
    other = tmp_path / "tokenizer.json"
    other.write_bytes((folder / "tokenizer.json").read_bytes() + b" ")
    with pytest.raises(DataError, match="is not the tokenizer that the shards"):
        run_of(tmp_path, tokenizer=other, data=folder)
    (folder / "index.json").write_text("{}")
    with pytest.raises(DataError, match="line 1"):
        run_of(tmp_path, data=folder)
    assert not folder_of(tmp_path / "run.toml").exists()


@pytest.mark.processes
def test_the_built_in_model_takes_as_many_tokens_as_its_tokenizer_has(tmp_path: Path) -> None:
    signed, _ = run_of(tmp_path, data=data(tmp_path / "data"))
    assert isinstance(signed.manifest.model, LlamaSection)
    assert signed.manifest.model.vocab_size == signed.manifest.tokenizer.vocab_size == 4


@pytest.mark.processes
def test_the_built_in_model_takes_a_tokenizer_too_and_nothing_is_overwritten(tmp_path: Path) -> None:
    folder, file = data(tmp_path / "data"), tmp_path / "run.toml"
    command = ["manifest", "new", str(file), "--data", str(folder), "--home", str(tmp_path / "home")]
    made = CliRunner().invoke(peer, [*command, "--set", "vocab_size=300"])
    assert made.exit_code != 0, "several sections have a vocab_size"
    made = CliRunner().invoke(peer, [*command, "--set", "model.vocab_size=300", "--preset", "diloco"])
    assert made.exit_code == 0, made.output
    manifest = load_signed(file).manifest
    assert isinstance(manifest.model, LlamaSection)
    assert (manifest.model.vocab_size, manifest.tokenizer.vocab_size, manifest.sync.preset) == (300, 4, "diloco")
    assert CliRunner().invoke(peer, ["manifest", "check", str(file)]).exit_code == 0
    assert CliRunner().invoke(peer, command).exit_code != 0
    with mock.patch.object(new_run, "write_new", side_effect=OSError), pytest.raises(OSError):  # noqa: PT011
        make_run(tmp_path / "other.toml", KEY, [], quiet, data=folder)
    assert not (tmp_path / "other.artifacts").exists()
