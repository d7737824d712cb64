"""A tokenizer.json is opened with bounded size, and special tokens in texts are encoded as ordinary text."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from peer.data import encoding
from peer.data.encoding import END_TEXT, TextEncoder, open_tokenizer
from peer.errors import DataError


def test_tokens_are_those_of_the_library(tokenizer: Path, encoder: TextEncoder) -> None:
    texts = ["The peers train a model.", "", "Ünïcode ☃ 🎈\r\n", "exchange " * 100]
    plain = Tokenizer.from_file(str(tokenizer))
    found = encoder.encode(texts)
    assert [tokens.tolist() for tokens in found] == [plain.encode(text).ids for text in texts]
    assert {tokens.dtype for tokens in found} == {np.dtype(np.uint16)}
    assert [plain.decode(tokens.tolist()) for tokens in found] == texts


def test_a_text_that_spells_the_end_token_is_only_text(encoder: TextEncoder) -> None:
    assert encoder.end_token not in encoder.encode([f"a{END_TEXT}b"])[0]


def test_a_tokenizers_own_cuts_and_fillings_are_off(tokenizer: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    changed = Tokenizer.from_file(str(tokenizer))
    changed.enable_truncation(4)
    changed.enable_padding(length=8)
    changed.save(str(tmp_path / "changed.json"))
    texts = ["The peers train a model together.", "The"]
    found = open_tokenizer(tmp_path / "changed.json").encode(texts)
    assert [one.tolist() for one in found] == [one.tolist() for one in encoder.encode(texts)]


def test_a_tokenizers_dropout_is_off(tokenizer: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    made = json.loads(tokenizer.read_text())
    made["model"]["dropout"] = 0.5
    (tmp_path / "random.json").write_text(json.dumps(made))
    texts = ["The peers train a model together, and meet in rounds. " * 10]
    opened = open_tokenizer(tmp_path / "random.json")
    assert [one.tolist() for one in opened.encode(texts)] == [one.tolist() for one in encoder.encode(texts)]
    assert opened.turned_off == ["BPE dropout 0.5"]


def test_a_byte_order_mark_is_skipped(tokenizer: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    marked = codecs.BOM_UTF8 + tokenizer.read_bytes()
    (tmp_path / "marked.json").write_bytes(marked)
    opened = open_tokenizer(tmp_path / "marked.json")
    assert opened.encode(["The peers"])[0].tolist() == encoder.encode(["The peers"])[0].tolist()
    assert opened.raw == marked, "the run names the file by its exact bytes"


def test_a_large_vocabulary_has_wide_tokens(tokenizer: Path, tmp_path: Path) -> None:
    made = json.loads(tokenizer.read_text())
    made["added_tokens"].append({**made["added_tokens"][0], "id": 70_000, "content": "<wide>"})
    made["model"]["vocab"]["<wide>"] = 70_000
    (tmp_path / "wide.json").write_text(json.dumps(made))
    wide = open_tokenizer(tmp_path / "wide.json")
    assert (wide.vocab_size, wide.dtype) == (70_001, "uint32")
    assert wide.encode(["The"])[0].dtype == np.uint32


def test_the_end_token_is_found_or_named(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(tokenizer.read_text().replace(END_TEXT, "</s>"))
    assert open_tokenizer(path).end_text == "</s>"
    path.write_text(tokenizer.read_text().replace(END_TEXT, "<over>"))
    assert open_tokenizer(path, "<over>").end_token == 0
    with pytest.raises(DataError, match="has no end token <\\|endoftext\\|>, ") as raised:
        open_tokenizer(path)
    assert "--end-token" in raised.value.fix
    with pytest.raises(DataError, match="has no end token <gone>"):
        open_tokenizer(path, "<gone>")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00", b"[" * 10_000, b'{"model": {"type": "BPE"}}'])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json is not a tokenizer\.json"):
        open_tokenizer(tmp_path / "a.json")


def test_large_and_missing_files_are_refused(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"gone\.json cannot be read"):
        open_tokenizer(tmp_path / "gone.json")
    monkeypatch.setattr(encoding, "MAX_VOCABULARY", 300)
    with pytest.raises(DataError, match="has token numbers up to"):
        open_tokenizer(tokenizer)
    monkeypatch.setattr(encoding, "MAX_TOKENIZER_BYTES", 100)
    with pytest.raises(DataError, match="is larger than"):
        open_tokenizer(tokenizer)
