"""`peer generate`: the same seed gives the same text, and prompts that the run's tokenizer cannot encode are
refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.result.generate import draw
from peer.result.text import ByteCoder, TextStream
from tests.support.made_home import SMALL, TRAIN, MadeHome, command, made_home
from tests.support.sandbox_here import open_here


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> MadeHome:
    made = made_home(tmp_path_factory.mktemp("bytes"), *SMALL, *TRAIN)
    made.save(made.first(noise=0.2))
    return made


def generated(home: MadeHome, *options: object) -> dict[str, Any]:
    told = command("generate", home.path, "--prompt", "def ", "--max-tokens", 40, "--device", "cpu", "--json", *options)
    answer: dict[str, Any] = json.loads(told)
    return answer


def test_a_seed_repeats_and_another_does_not(home: MadeHome) -> None:
    first = generated(home, "--seed", 3)
    assert generated(home, "--seed", 3) == first
    assert generated(home, "--seed", 4)["text"] != first["text"]
    assert (first["tokens"], first["seed"], first["round"]) == (40, 3, 7)
    chosen = generated(home)
    assert generated(home, "--seed", chosen["seed"]) == chosen, "the seed that was chosen is told"


def test_the_text_is_printed_alone(home: MadeHome) -> None:
    told = command("generate", home.path, "--prompt", "def ", "--max-tokens", 40, "--seed", 3, "--device", "cpu")
    assert told == generated(home, "--seed", 3)["text"] + "\n"


def test_without_temperature_the_seed_does_not_matter(home: MadeHome) -> None:
    cold = generated(home, "--temperature", 0, "--seed", 1)
    assert generated(home, "--temperature", 0, "--seed", 2)["text"] == cold["text"]
    assert generated(home, "--top-p", 1e-9, "--seed", 5)["text"] == cold["text"], "only the likeliest token is left"


def test_a_prompt_of_nothing_needs_a_token_that_ends_documents(home: MadeHome) -> None:
    assert "empty" in command("generate", home.path, "--prompt", "", code=2)


def test_a_foreign_model_stops_at_the_end_of_a_document(
    shard_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_here(monkeypatch)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 500}))
    made = made_home(tmp_path, *TRAIN, model=config, data=shard_folder)
    made.save(made.first(noise=0.2))
    found = generated(made, "--seed", 1)
    assert generated(made, "--seed", 1) == found
    assert found["tokens"] > 0
    section = made.signed.manifest.tokenizer
    only_ends = made.first()
    table = only_ends[: 500 * 16].view(500, 16)
    table.zero_()
    table[section.vocab_size :] = 9.0  # no text has these tokens
    made.save(only_ends)
    ended = generated(made, "--temperature", 0)
    assert section.end_token == 0
    assert (ended["tokens"], ended["text"]) == (0, ""), "of equal chances the first token is taken, which ends"


def test_characters_come_when_they_are_complete() -> None:
    stream = TextStream(ByteCoder(), list(b"a"))
    raw = "bü漢".encode()
    assert [stream.add(byte) for byte in raw] == ["b", "", "ü", "", "", "漢"]
    assert stream.add(0xE6) == ""
    assert stream.end() == "\ufffd"


def test_only_the_likeliest_are_drawn() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()[[2, 0, 3, 1]]
    noise = torch.Generator().manual_seed(0)
    counts = torch.bincount(torch.tensor([draw(logits, 1.0, 0.7, noise) for _ in range(2000)]), minlength=4)
    assert counts[0] == counts[2] == 0
    assert counts[1] / counts.sum() == pytest.approx(4 / 7, abs=0.05)
    wide = torch.bincount(torch.tensor([draw(logits, 1.0, 1.0, noise) for _ in range(4000)]), minlength=4) / 4000
    assert wide.tolist() == pytest.approx([0.2, 0.4, 0.1, 0.3], abs=0.04)
