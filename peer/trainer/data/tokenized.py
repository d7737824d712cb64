"""Tokenizes the volunteer's own texts with the run's tokenizer.json, into files that are mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from blake3 import blake3

from peer.errors import DataError, ManifestError, file_advice
from peer.run.files.tokenizer_file import check_count, check_tokenizer, open_tokenizer
from peer.run.home import write_whole
from peer.trainer.data.corpus import Corpus, Tokens
from peer.trainer.data.text import Passage

TRAIN, HOLDOUT, FACTS = "own_train.tokens", "own_holdout.tokens", "own_texts.json"
ENCODING = 2
"""Version of the conversion of texts to tokens. Files of another version are made again."""
TOGETHER = 64
"""Most passages of a batch that is tokenized at once."""
MOST_CHARACTERS = 2**24
"""Most characters that the tokenizer may expand a batch to, unless the batch is a single passage."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer.json that the daemon has checked, with its vocabulary's size and end token by the manifest."""

    path: Path
    vocab_size: int
    end_token: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.vocab_size <= 2**16 else "<u4")


def tokenized(
    train: list[Passage], holdout: list[Passage], text_digest: str, tokenizer: TokenizerFile, folder: Path
) -> Corpus:
    """Return the texts as tokens, with the end token after each document.

    `text_digest`: digest of all texts. The token files in `folder` are reused if texts and tokenizer are the same.
    Raises DataError, HomeUnusable, ManifestError, and ModelError for a tokenizer that makes far too many tokens of a
    text."""
    digest = blake3(text_digest.encode() + tokenizer.path.read_bytes()).hexdigest()
    parts = {TRAIN: train, HOLDOUT: holdout}
    if not _are_here(folder, digest, tokenizer.dtype):
        # invalidate first: a crash must not leave old metadata beside new tokens
        (folder / FACTS).unlink(missing_ok=True)
        written = {name: _write(folder / name, passages, tokenizer) for name, passages in parts.items()}
        write_whole(folder / FACTS, json.dumps({"digest": digest, "tokens": written, "encoding": ENCODING}).encode())
    tokens = {name: _mapped(folder / name, tokenizer.dtype) for name in parts}
    text_bytes = sum(len(passage.text) for passage in holdout)
    return Corpus(tokens[TRAIN], tokens[HOLDOUT], digest, text_bytes / max(1, len(tokens[HOLDOUT])))


def _are_here(folder: Path, digest: str, dtype: np.dtype[Any]) -> bool:
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        sizes = {name: (folder / name).stat().st_size // dtype.itemsize for name in (TRAIN, HOLDOUT)}
    except (OSError, ValueError):
        return False
    return bool(facts == {"digest": digest, "tokens": sizes, "encoding": ENCODING})


def _write(path: Path, passages: list[Passage], tokenizer: TokenizerFile) -> int:
    """Write the tokens of passages to a file. Return their number. Raises DataError when the file cannot be written."""
    try:
        with path.open("wb") as file:
            return _write_all(file, passages, tokenizer)
    except OSError as error:
        found = f"cannot write the tokens of your texts to {path}: {error.strerror}"
        raise DataError(found, file_advice(error, path)) from error


def _write_all(file: BinaryIO, passages: list[Passage], tokenizer: TokenizerFile) -> int:
    raw = tokenizer.path.read_bytes()
    encoder, growth = open_tokenizer(raw), check_tokenizer(raw)
    encoder.encode_special_tokens = True  # text that spells the end token is ordinary text, and ends no document
    count = 0
    for batch in _batches(passages, growth):
        texts = [passage.text.decode(errors="replace") for passage in batch]
        for passage, encoded in zip(batch, encoder.encode_batch(texts, add_special_tokens=False), strict=True):
            ids = [*encoded.ids, tokenizer.end_token] if passage.ends else encoded.ids
            check_count(len(ids), len(passage.text))
            if ids and max(ids) >= tokenizer.vocab_size:
                found = f"the tokenizer gives token {max(ids)}, the manifest says that it has {tokenizer.vocab_size}"
                raise ManifestError(found, "The operator has to correct tokenizer.vocab_size.")
            file.write(np.array(ids, tokenizer.dtype).tobytes())
            count += len(ids)
    return count


def _batches(passages: Iterable[Passage], growth: float) -> Iterator[list[Passage]]:
    """Yield batches of passages that need a bounded amount of memory.

    `growth`: most characters that the tokenizer may make of one byte."""
    batch, made = list[Passage](), 0.0
    for passage in passages:
        characters = growth * len(passage.text)
        if batch and (len(batch) == TOGETHER or made + characters > MOST_CHARACTERS):
            yield batch
            batch, made = [], 0.0
        batch.append(passage)
        made += characters
    if batch:
        yield batch


def _mapped(path: Path, dtype: np.dtype[Any]) -> Tokens:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")
