"""Own texts are tokenized once into mapped files, with an end token after each document."""

from __future__ import annotations

import codecs
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import WhitespaceSplit

from peer.errors import ManifestError, ModelError
from peer.run.sections import DataSection
from peer.trainer.data import Corpus, load_corpus
from peer.trainer.data.text import BLOCK_BYTES
from peer.trainer.data.tokenized import FACTS, HOLDOUT, TRAIN, TokenizerFile

TEXT = DataSection(kind="text")
WORDS = 40


def tokenizer(folder: Path, vocab_size: int = 70_000, end_token: int = 69_999) -> TokenizerFile:
    """Write a tokenizer with the words `w0`, `w1`, …. The number of the last one needs 32 bits."""
    words = {f"w{number}": number for number in range(WORDS)} | {"wide": 65_537, "?": WORDS}
    made = Tokenizer(WordLevel(words, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()
    path = folder / "tokenizer.json"
    made.save(str(path))
    return TokenizerFile(path, vocab_size, end_token)


def texts(folder: Path) -> Path:
    data = folder / "data"
    (data / "holdout").mkdir(parents=True)
    for number in range(3):
        (data / f"{number}.txt").write_text(f"w{number} wide w{number + 10} " * 200)
    (data / "holdout" / "a.txt").write_text("w1 w2 " * 300)
    return data


def load(folder: Path, data: Path, file: TokenizerFile) -> Corpus:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return load_corpus(TEXT, str(data), 16, file, home)


def test_nothing_of_a_text_is_cut_off_filled_up_or_random(tmp_path: Path) -> None:
    data = texts(tmp_path)
    expected = load(tmp_path, data, tokenizer(tmp_path)).train.tolist()
    (data / "0.txt").write_bytes(codecs.BOM_UTF8 + (data / "0.txt").read_bytes())
    file = tokenizer(tmp_path)
    changed = Tokenizer.from_file(str(file.path))
    changed.enable_truncation(4)
    changed.enable_padding(length=3000)
    changed.save(str(file.path))
    (tmp_path / "home" / FACTS).unlink()
    assert load(tmp_path, data, file).train.tolist() == expected


def test_documents_are_tokens_closed_by_the_end_token(tmp_path: Path) -> None:
    corpus = load(tmp_path, texts(tmp_path), tokenizer(tmp_path))
    expected = [token for n in range(3) for token in [*[n, 65_537, n + 10] * 200, 69_999]]
    assert corpus.train.tolist() == expected
    assert corpus.holdout.tolist() == [*[1, 2] * 300, 69_999]
    assert corpus.train.dtype == np.uint32
    assert corpus.bytes_per_token == 1800 / 601
    assert isinstance(corpus.train, np.memmap), "in a file, not in memory"
    assert corpus.description == "4 files, 9 kB; skipped 0 binary, 0 hidden"


def test_a_small_vocabulary_takes_two_bytes_a_token(tmp_path: Path) -> None:
    data = texts(tmp_path)
    for path in data.glob("*.txt"):
        path.write_text(path.read_text().replace("wide", "w5"))
    assert load(tmp_path, data, tokenizer(tmp_path, 41, 3)).train.dtype == np.uint16


def test_the_files_are_made_once_and_again_when_something_changed(tmp_path: Path) -> None:
    data, file, home = texts(tmp_path), tokenizer(tmp_path), tmp_path / "home"
    first = load(tmp_path, data, file)
    made = [(home / name).stat().st_mtime_ns for name in (TRAIN, HOLDOUT)]
    assert load(tmp_path, data, file).digest == first.digest
    assert [(home / name).stat().st_mtime_ns for name in (TRAIN, HOLDOUT)] == made
    (data / "0.txt").write_text("w7 " * 400)
    second = load(tmp_path, data, file)
    assert second.digest != first.digest
    assert 7 in second.train[:5]
    (home / TRAIN).write_bytes(b"torn")
    assert load(tmp_path, data, file).train.tolist() == second.train.tolist()
    (home / FACTS).write_text(json.dumps([]))
    assert load(tmp_path, data, file).train.tolist() == second.train.tolist()


def test_a_long_file_is_one_document(tmp_path: Path) -> None:
    data = texts(tmp_path)
    (data / "long.txt").write_text("w3 w4 " * (BLOCK_BYTES // 3))
    tokens = load(tmp_path, data, tokenizer(tmp_path)).train
    assert int((tokens == 69_999).sum()) == 4
    assert math.isclose(int((tokens == 3).sum()), BLOCK_BYTES // 3, abs_tol=2)


def test_a_token_beyond_the_manifest_s_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="gives token 65537, the manifest says that it has 300"):
        load(tmp_path, texts(tmp_path), tokenizer(tmp_path, 300, 299))


def test_a_tokenizer_that_gives_too_many_tokens_is_refused(tmp_path: Path) -> None:
    """Fault: a normalizer or pre-tokenizer in the file expands a text without bound."""
    made = Tokenizer(WordLevel({"w": 0, "?": 1}, unk_token="?"))
    made.normalizer = Replace(Regex(r"\d"), "w " * 6)
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    data = texts(tmp_path)
    for file in data.rglob("*.txt"):
        file.write_text("1" * 2000)
    with pytest.raises(ModelError, match="tokens for a text of"):
        load(tmp_path, data, TokenizerFile(tmp_path / "tokenizer.json", 10, 2))
