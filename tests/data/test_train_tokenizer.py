"""The same texts give the same tokenizer, which is written completely or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from peer.data.encoding import END_TEXT
from peer.data.sources import find
from peer.data.train_tokenizer import TrainedTokenizer, train_tokenizer
from peer.errors import DataError
from tests.data.conftest import VOCABULARY


def train(source: Path, out: Path, vocab_size: int = VOCABULARY) -> TrainedTokenizer:
    return train_tokenizer(find([source]), vocab_size, out, lambda read, total: None)


TRAIN = """
import sys
from pathlib import Path
from peer.data.sources import find
from peer.data.train_tokenizer import train_tokenizer
train_tokenizer(find([Path(sys.argv[1])]), 600, Path(sys.argv[2]), lambda read, total: None)
"""


@pytest.mark.processes
def test_the_same_texts_give_the_same_file(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    for threads in ("1", "4"):
        path = tmp_path / f"{threads}.json"
        command = [sys.executable, "-c", TRAIN, str(texts), str(path)]
        environment = {**os.environ, "RAYON_NUM_THREADS": threads}
        subprocess.run(command, env=environment, timeout=180, check=True)
        assert path.read_bytes() == tokenizer.read_bytes()


def test_every_text_comes_back(texts: Path, tmp_path: Path) -> None:
    made = train(texts, tmp_path / "a.json", 300)
    tokenizer = Tokenizer.from_file(str(tmp_path / "a.json"))
    assert (made.vocab_size, tokenizer.get_vocab_size()) == (300, 300)
    assert made.end_token == tokenizer.token_to_id(END_TEXT)
    assert made.documents == 60
    for text in ("Ünïcode ☃ 🎈 \x00\r\n\t", "words that nobody wrote: zqxj", " leading  and trailing "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_few_texts_have_few_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aa aa aa")
    assert 257 < train(tmp_path, tmp_path / "a.json", 5000).vocab_size < 300


def test_no_file_is_replaced(texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("mine")
    with pytest.raises(DataError, match=r"a\.json exists already"):
        train(texts, path)
    assert path.read_text() == "mine"
    with pytest.raises(DataError, match="there is no folder"):
        train(texts, tmp_path / "gone" / "a.json")


def test_a_file_that_appears_meanwhile_is_not_replaced(texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(DataError, match=r"a\.json exists already"):
        train_tokenizer(find([texts]), VOCABULARY, path, lambda read, total: path.touch())
    assert path.read_bytes() == b""
    assert list(tmp_path.iterdir()) == [path]


def test_bad_input_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 is no JSON"):
        train(tmp_path, tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="the sources hold no text"):
        train(tmp_path, tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
