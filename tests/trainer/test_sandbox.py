"""Hostile files are refused by the sandbox in time and with bounded memory, and have no other effect."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from peer.errors import ModelError
from peer.protocol.model.layout import Layout
from peer.trainer import sandbox
from peer.trainer.models.flat import views_of
from peer.trainer.sandbox import BUSY, MEMORY, OPEN_S, Inspected, inspect_config, inspect_tokenizer, write_weights
from tests.support.sandbox_here import open_here

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
ANY = 2**40


def config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(TINY | changes))
    return path


def tokenizer(folder: Path, **changes: Any) -> Path:
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    added = [{"id": 5, "content": "<|endoftext|>", "special": True}]
    added = [item | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) for item in added]
    table = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]}, "added_tokens": added}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(table | changes))
    return path


def refused_in_time(work: Callable[[], object], words: str) -> None:
    """Check a refusal and its time, which counts from the moment when the libraries are loaded."""
    began, opened = time.monotonic(), list[float]()
    lines = sandbox.ChildLines.next

    def noted(self: sandbox.ChildLines, seconds: float, why: str) -> dict[str, Any]:
        said = lines(self, seconds, why)
        opened.append(time.monotonic())
        return said

    with mock.patch.object(sandbox.ChildLines, "next", noted), pytest.raises(ModelError, match=re.escape(words)):
        work()
    assert time.monotonic() - (opened[0] if opened else began) < 2 * BUSY * OPEN_S


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the jobs in this process, without a sandbox."""
    open_here(monkeypatch)


@pytest.mark.processes
def test_a_config_is_told_without_making_its_model(tmp_path: Path) -> None:
    told = inspect_config(config(tmp_path, vocab_size=2**20, hidden_size=2**12), ANY)
    assert isinstance(told, Inspected)
    assert (told.vocab, told.max_positions, told.attention) == (2**20, 64, True)
    assert told.parameters == sum(tensor.elements for tensor in told.tensors) > 2**32
    assert told.tensors[0].name == "model.embed_tokens.weight"


@pytest.mark.usefixtures("here")
def test_a_model_without_attention_or_with_unbounded_positions_says_so(tmp_path: Path) -> None:
    told = inspect_config(config(tmp_path, model_type="mamba", num_hidden_layers=1, state_size=4), ANY, context=8)
    assert (told.max_positions, told.attention) == (64, False)
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 96}')
    assert inspect_config(path, ANY, context=8).max_positions is None


@pytest.mark.usefixtures("here")
def test_a_config_of_more_parameters_than_its_run_allows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="parameters that its run allows"):
        inspect_config(config(tmp_path, vocab_size=2**24, hidden_size=2**20), 10**8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"vocab_size": 2**31}, "vocab_size = 2147483648"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "code of others"),
        ({"hidden_size": "/etc/passwd"}, "holds a path"),
    ],
)
def test_a_hostile_config_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    refused_in_time(lambda: inspect_config(config(tmp_path, **change), 10**8), words)


@pytest.mark.processes
def test_a_config_that_takes_too_long_to_look_at_is_refused(tmp_path: Path) -> None:
    deep = {"num_hidden_layers": 10**4, "hidden_size": 8, "head_dim": 2, "intermediate_size": 1, "vocab_size": 2}
    refused_in_time(lambda: inspect_config(config(tmp_path, **deep), 10**8, 1.0), "more processor time than allowed")


@pytest.mark.usefixtures("here")
def test_a_model_that_sees_later_tokens_is_refused_where_it_is_to_be_trained(tmp_path: Path) -> None:
    path = config(tmp_path, model_type="bert")
    with pytest.raises(ModelError, match="BertLMHeadModel sees later tokens") as caught:
        inspect_config(path, 10**8, context=8)
    assert "is_decoder" in caught.value.fix


@pytest.mark.usefixtures("here")
def test_a_model_that_sees_later_tokens_can_still_be_exported(tmp_path: Path) -> None:
    assert inspect_config(config(tmp_path, model_type="bert"), 10**8).vocab == 96


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "never-heard-of"}, "knows no model_type"),
        ({"hidden_size": "many"}, "the libraries cannot use it"),
    ],
)
def test_a_config_of_no_model_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        inspect_config(config(tmp_path, **change), 10**8, context=8)


@pytest.mark.processes
def test_memory_is_limited_from_when_the_libraries_are_loaded(tmp_path: Path) -> None:
    with mock.patch.object(sandbox, "MEMORY", 2**20):
        refused_in_time(lambda: inspect_tokenizer(wide_tokenizer(tmp_path)), "memory")
    assert inspect_tokenizer(wide_tokenizer(tmp_path)).vocab_size == 300_000
    assert MEMORY == 512 * 2**20


@pytest.mark.processes
def test_processor_time_is_limited_and_not_the_time_of_waiting(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="more processor time than allowed"):
        inspect_tokenizer(wide_tokenizer(tmp_path), processor_s=0.05)


def wide_tokenizer(folder: Path) -> Path:
    vocabulary = {f"token {number}": number for number in range(300_000)}
    return tokenizer(folder, model={"type": "BPE", "vocab": vocabulary, "merges": []}, added_tokens=[])


@pytest.mark.usefixtures("here")
def test_a_tokenizer_is_told(tmp_path: Path) -> None:
    told = inspect_tokenizer(tokenizer(tmp_path))
    assert (told.vocab_size, told.end_token) == (4, 3)
    assert inspect_tokenizer(tokenizer(tmp_path, added_tokens=[])).end_token is None


def test_a_tokenizer_of_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    refused_in_time(lambda: inspect_tokenizer(path), "1,073,741,824 bytes")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 2**40}, "merges": []}}, "cannot read"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": ["x y"]}}, "cannot"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}}}, "a pattern in its pre_tokenizer"),
    ],
)
def test_a_hostile_tokenizer_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        inspect_tokenizer(tokenizer(tmp_path, **change))


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    for work in (lambda: inspect_config(tmp_path / "x", ANY), lambda: inspect_tokenizer(tmp_path / "x")):
        with pytest.raises(ModelError, match="No such file"):
            work()


@pytest.mark.processes
def test_a_library_that_is_missing_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('no tokenizers here')")
    with mock.patch.dict("os.environ", {"PYTHONPATH": str(tmp_path)}), pytest.raises(ModelError) as caught:
        inspect_tokenizer(tokenizer(tmp_path))
    assert "no tokenizers here" in caught.value.found
    assert "-m pip install" in caught.value.fix


@pytest.mark.usefixtures("here")
def test_first_weights_are_a_function_of_config_and_seed_or_those_of_a_folder(tmp_path: Path) -> None:
    path, told = config(tmp_path), inspect_config(config(tmp_path), ANY, context=8)

    def made(name: str, seed: int, folder: Path | None = None) -> torch.Tensor:
        out = tmp_path / name
        write_weights(path, seed, told.tensors, out, folder)
        return torch.frombuffer(bytearray(out.read_bytes()), dtype=torch.float32)

    one, again, other = made("1", 7), made("2", 7), made("3", 8)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.numel() == told.parameters
    weights = dict(views_of(one, Layout.whole(told.tensors)))
    assert bool((weights["model.norm.weight"] == 1).all())
    assert 0.01 < float(weights["model.embed_tokens.weight"].std()) < 0.03

    from safetensors.torch import save_file

    folder = tmp_path / "pretrained"
    folder.mkdir()
    save_file({name: view.clone() for name, view in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(made("4", 0, folder), one)
    lacking = {name: view.clone() for name, view in weights.items() if name != "model.norm.weight"}
    save_file(lacking, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights of its model: model\.norm\.weight"):
        made("5", 0, folder)
    with pytest.raises(ModelError, match="parameters here"):
        write_weights(path, 7, told.tensors[1:], tmp_path / "6")
