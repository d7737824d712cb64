"""`peer export`: transformers can load the folder, and computes the same loss as `peer eval`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer.result.export import hf, write
from peer.result.model import SourceRequest
from peer.result.network import network_of
from peer.result.source import load_model
from peer.run.files.tokenizer_file import BEGIN_TOKENS, PAD_TOKENS, token_names
from peer.run.manifest import load_signed
from peer.trainer import models
from peer.trainer.batches import holdout_windows
from peer.trainer.models.flat import views_of
from tests.support.made_home import SMALL, TRAIN, MadeHome, command, made_home
from tests.support.sandbox_here import open_here

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 32}
QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 400,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
TOKENIZER = {
    "added_tokens": [
        {"id": 1, "content": "<s>", "special": True},
        {"id": 2, "content": "</s>", "special": True},
        {"id": 3, "content": "<pad>", "special": True},
    ],
    "model": {"type": "Unigram", "vocab": [["a", -1.0], ["<s>", 0.0], ["</s>", 0.0]]},
}
MODELS: dict[str, dict[str, Any] | None] = {"gpt2": GPT2, "qwen3": QWEN, "llama": None}
STREAMED = ("sync.preset=streaming-diloco", "sync.fragments=2", "sync.fragment_layout=strided")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    open_here(monkeypatch)


NAMED = {"bos_token_id": 0, "eos_token_id": 0}


def made(folder: Path, kind: str, shards: Path, named: dict[str, int] = NAMED) -> MadeHome:
    """Make a home with a trained model. `named`: special tokens in its config."""
    config, settings = MODELS[kind], [*TRAIN, *STREAMED]
    if config is None:
        home = made_home(folder, *SMALL, *settings, "model.vocab_size=400", data=shards)
    else:
        (folder / "config.json").write_text(json.dumps(config | named))
        home = made_home(folder, *settings, model=folder / "config.json", data=shards)
    home.save(home.first(noise=0.05))
    return home


def told(*arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(command(*arguments, "--json", "--device", "cpu"))
    return answer


def library_loss(folder: Path, home: MadeHome, tokens: Any) -> float:
    """Return the loss that transformers computes on the run's own windows."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    train = home.signed.manifest.train
    windows = holdout_windows(tokens, context=train.context, count=train.eval_windows)
    inputs = torch.from_numpy(windows.astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=inputs[:, :-1], use_cache=False).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten()))


@pytest.mark.parametrize("kind", MODELS)
def test_transformers_finds_the_same_loss_and_the_same_tokens(kind: str, shard_folder: Path, tmp_path: Path) -> None:
    home, out = made(tmp_path, kind, shard_folder), tmp_path / "out" / "model"
    evaluated, exported = told("eval", home.path), told("export", home.path, out)
    assert exported["loss"] == evaluated["loss"]
    tokens = np.fromfile(shard_folder / "holdout-00000.tokens", "<u2")
    assert library_loss(out, home, tokens) == pytest.approx(evaluated["loss"], abs=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(out)
    text = "def add(one, other):\n    return one + other  # ünïcode"
    plain = AutoTokenizer.from_pretrained(out)(text)["input_ids"]
    assert tokenizer.decode(plain) == text
    assert tokenizer.eos_token_id == home.signed.manifest.tokenizer.end_token
    found = AutoModelForCausalLM.from_pretrained(out)
    assert found.generation_config.eos_token_id == tokenizer.eos_token_id
    config = json.loads((out / "config.json").read_text())
    assert (MODELS[kind] or {}).items() <= config.items()
    assert not list(out.glob("*.bin"))
    assert [path.name for path in out.parent.iterdir()] == ["model"], "no draft is left"


def without_libraries(patch: pytest.MonkeyPatch) -> None:
    """Make every import of transformers and tokenizers fail, as with a wheel without extras."""
    for name in ("transformers", "tokenizers", "peer.trainer.models.builder"):
        patch.setitem(sys.modules, name, None)
    patch.delattr(models, "builder", raising=False)


def test_the_built_in_model_is_exported_without_further_libraries(
    shard_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = made(tmp_path, "llama", shard_folder), tmp_path / "out"
    with monkeypatch.context() as patch:
        without_libraries(patch)
        exported = told("export", home.path, out)
        request = SourceRequest(scratch=tmp_path)
        network = network_of(load_model([str(home.path)], request, lambda line: None), torch.device("cpu"))
    assert exported["loss"] is not None
    tokens = torch.randint(0, 400, (3, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(out)(input_ids=tokens).logits
        torch.testing.assert_close(theirs, network.logits(tokens), rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(out).eos_token_id == home.signed.manifest.tokenizer.end_token


def test_special_tokens_are_the_tokenizers_and_nothing_is_warned_of(
    shard_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config names none, and the library's defaults are outside of the vocabulary."""
    home, out = made(tmp_path, "gpt2", shard_folder, named={}), tmp_path / "out"
    command("export", home.path, out, "--no-eval")
    end = home.signed.manifest.tokenizer.end_token
    warnings = list[str]()
    handler = logging.Handler(logging.WARNING)
    monkeypatch.setattr(handler, "emit", lambda record: warnings.append(record.getMessage()))
    logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]  # transformers adds it
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [handler])
    found, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert warnings == []
    for settings in (found.config, found.generation_config):
        assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (None, end, None)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (None, end, None)


SHAPE = {key: value for key, value in QWEN.items() if key != "model_type"}
CWM = SHAPE | {"model_type": "cwm", "num_attention_heads": 2, "head_dim": 8}
MODERN = SHAPE | {"model_type": "modernbert-decoder", "global_attn_every_n_layers": 1}


@pytest.mark.parametrize(
    ("config", "kept"), [(CWM, {"pad_token_id": None}), (MODERN, {"pad_token_id": 0})], ids=["cwm", "modernbert"]
)
def test_a_token_that_a_type_of_config_wants_as_a_number_is_no_null(
    config: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    """The run's tokens are bytes, so it has no begin token."""
    file, out = tmp_path / "config.json", tmp_path / "out"
    file.write_text(json.dumps(config))
    home = made_home(tmp_path, *TRAIN, model=file)
    home.save(home.first())
    command("export", home.path, out, "--no-eval")
    written = json.loads((out / "config.json").read_text())
    assert "bos_token_id" not in written
    assert kept.items() <= written.items()
    AutoModelForCausalLM.from_pretrained(out)


def test_begin_and_pad_are_found_by_their_usual_names() -> None:
    table = json.dumps(TOKENIZER).encode()
    names = token_names(table)
    assert (names.first(BEGIN_TOKENS), names.first(PAD_TOKENS)) == (1, 3)
    assert names.names[2] == "</s>"
    assert names.first(["a"]) is None, "a text may contain it"


def test_the_tokens_are_those_of_the_runs_data(shard_folder: Path, tmp_path: Path) -> None:
    home, out = made(tmp_path, "llama", shard_folder), tmp_path / "out"
    command("export", home.path, out, "--no-eval")
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokens = np.fromfile(shard_folder / "train-00000.tokens", "<u2").astype(int).tolist()
    document = tokens[: tokens.index(home.signed.manifest.tokenizer.end_token)]
    assert tokenizer(tokenizer.decode(document), add_special_tokens=False)["input_ids"] == document


def test_byte_tokens_have_a_tokenizer_too(tmp_path: Path) -> None:
    home, out = made_home(tmp_path, *SMALL, *TRAIN), tmp_path / "out"
    home.save(home.first())
    command("export", home.path, out, "--no-eval")
    tokenizer = AutoTokenizer.from_pretrained(out)
    text = "tabs\tand\r\n  spaces, ünïcode 漢字 \x00\x7f"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    AutoModelForCausalLM.from_pretrained(out)


def test_large_weights_are_cut_and_indexed(shard_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, out = made(tmp_path, "llama", shard_folder), tmp_path / "out"
    monkeypatch.setitem(
        write.FORMATS, "hf", (lambda model, folder, dtype: hf.write_hf(model, folder, dtype, 20_000), "")
    )
    loss = told("export", home.path, out)["loss"]
    assert len(list(out.glob("model-*.safetensors"))) > 1
    assert (out / "model.safetensors.index.json").exists()
    tokens = np.fromfile(shard_folder / "holdout-00000.tokens", "<u2")
    assert library_loss(out, home, tokens) == pytest.approx(loss, abs=1e-4)


def test_plain_tensors_have_the_names_of_the_run_and_its_manifest(tmp_path: Path) -> None:
    home, out = made_home(tmp_path, *SMALL, *TRAIN, *STREAMED), tmp_path / "out"
    home.save(home.first(noise=0.1))
    command("export", home.path, out, "--format", "safetensors")
    found, wanted = load_file(out / "model.safetensors"), dict(views_of(home.first(noise=0.1), home.layout))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert load_signed(out / "run.toml") == home.signed


def test_the_card_tells_run_method_tokens_loss_and_peers(tmp_path: Path) -> None:
    home, out = made_home(tmp_path, *SMALL, *TRAIN), tmp_path / "out"
    home.save(home.first(), 11, donors=["12D3KooWone", "12D3KooWtwo"])
    loss = told("export", home.path, out)["loss"]
    card = (out / "README.md").read_text()
    for words in (
        home.signed.run_id.hex(),
        "gossip: pair",
        "11 of",
        "at least 4,096",
        f"{loss:.4f} nats",
        "256 tokens",
    ):
        assert words in card, words
    assert "* `12D3KooWone`\n* `12D3KooWtwo`" in card
    assert card.startswith("---\nlibrary_name: transformers\n")


def test_a_run_without_a_holdout_is_exported_without_a_loss(tmp_path: Path) -> None:
    home, out = made_home(tmp_path, *SMALL, *TRAIN, "data.kind=text"), tmp_path / "out"
    home.save(home.first())
    assert told("export", home.path, out)["loss"] is None
    assert "not measured: the run trains on its volunteers' own texts" in (out / "README.md").read_text()
    asked = command("export", home.path, tmp_path / "asked", "--eval", code=61)
    assert "--eval: no loss could be measured" in asked


def test_nothing_half_written_is_left_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = made_home(tmp_path, *SMALL, *TRAIN), tmp_path / "out"
    home.save(home.first())

    def fails(model: object, folder: Path, dtype: str | None) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(write.FORMATS, "hf", (fails, ""))
    assert "No space left" in command("export", home.path, out, "--no-eval", code=2)
    assert not out.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "run.toml", "run.toml.sig", "run.artifacts"}
    out.mkdir()
    (out / "mine").touch()
    assert "exists" in command("export", home.path, out, code=2)
    assert [path.name for path in out.iterdir()] == ["mine"]
