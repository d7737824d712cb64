"""Fixtures: texts of many documents, and a small tokenizer that was trained on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.data import shard_writer
from peer.data.build import Built, build
from peer.data.encoding import TextEncoder, open_tokenizer
from peer.data.sources import find
from peer.data.train_tokenizer import train_tokenizer

SHARD_TOKENS = 400
VOCABULARY = 600
WORDS = "the peers that train a model together meet in rounds and exchange what they have learned"


def story(number: int) -> str:
    """Return a document of 30 to 200 words that differs from all others."""
    words = WORDS.split()
    count = 30 + number * 37 % 170
    return f"Story {number}.\n" + " ".join(words[(number + at * at) % len(words)] for at in range(count)) + "\n"


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(60):
        path = folder / f"part{number % 3}" / f"{number:03}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(story(number))
    return folder


@pytest.fixture(scope="session")
def tokenizer(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(find([texts]), VOCABULARY, path, lambda read, total: None)
    return path


@pytest.fixture(scope="session")
def encoder(tokenizer: Path) -> TextEncoder:
    return open_tokenizer(tokenizer)


@pytest.fixture
def build_from(
    encoder: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Built, Path]]:
    """Return a function that builds shards of 400 tokens from sources, each time in a new folder."""
    monkeypatch.setattr(shard_writer, "SHARD_TOKENS", SHARD_TOKENS)

    def call(*sources: Path, out: str = "out", holdout_one_in: int | None = None) -> tuple[Built, Path]:
        folder = tmp_path / out
        return build(find(sources, [folder]), encoder, folder, holdout_one_in, lambda read, total: None), folder

    return call


def files_of(folder: Path) -> dict[str, bytes]:
    """Return name -> content of all files in a folder, including hidden ones."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
