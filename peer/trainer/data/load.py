"""Loads training data of the kinds `stdlib` and `text`."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
from blake3 import blake3

from peer.errors import DataError
from peer.run.files.own_texts import survey
from peer.run.sections import DataSection
from peer.trainer.data.corpus import Corpus
from peer.trainer.data.files import read_texts
from peer.trainer.data.stdlib import split_stdlib
from peer.trainer.data.text import BLOCK_BYTES, Passage, existing_folder, split_texts
from peer.trainer.data.tokenized import TokenizerFile, tokenized

MIN_WINDOWS = 4
"""Least windows of each part of the data."""


def load_corpus(
    section: DataSection,
    data_dir: str | None,
    context: int,
    tokenizer: TokenizerFile | None = None,
    scratch: Path | None = None,
) -> Corpus:
    """Read the data of a run of kind `stdlib` or `text`. Raises DataError.

    `data_dir`: the folder of the volunteer's texts. `context`: tokens of a window, for the check that there is enough
    data. Without `tokenizer` the tokens are bytes in memory; with it they lie in files of the folder `scratch`."""
    if section.kind == "stdlib":
        folder, description = Path(sysconfig.get_path("stdlib")), ""
        train, holdout = ([Passage(text, True) for text in part] for part in split_stdlib(folder))
    else:
        folder = existing_folder(data_dir)
        found = survey(folder)
        description = found.summary()
        if not found.files:
            fix = "Put text files into it, or name another with --data."
            raise DataError(f"the data folder {folder} holds no text: {description}", fix)
        train, holdout = split_texts(read_texts(folder, found.files))
    corpus = _in_memory(train, holdout)
    _check_digest(corpus.digest, section, folder)
    if tokenizer is not None:
        assert scratch is not None
        corpus = tokenized(train, holdout, corpus.digest, tokenizer, scratch)
    _check_size(corpus, context, folder)
    return replace(corpus, description=description)


def _in_memory(train: list[Passage], holdout: list[Passage]) -> Corpus:
    parts = [b"".join(passage.text for passage in part) for part in (train, holdout)]
    digest = blake3(parts[0])
    digest.update(parts[1])
    return Corpus(np.frombuffer(parts[0], np.uint8), np.frombuffer(parts[1], np.uint8), digest.hexdigest())


def _check_size(corpus: Corpus, context: int, folder: Path) -> None:
    needed = MIN_WINDOWS * (context + 1)
    unit = "bytes" if corpus.train.dtype == np.uint8 else "tokens"
    for part, name in ((corpus.train, "training"), (corpus.holdout, "hold-out")):
        if len(part) < needed:
            wanted = 2 * (needed // BLOCK_BYTES + 1) * BLOCK_BYTES
            raise DataError(
                f"too little data in {folder}: the {name} part has {len(part)} {unit}, {needed} are needed",
                f"Put more text into the --data folder: at least {-(-wanted // 1000)} kB in all.",
            )


def _check_digest(digest: str, section: DataSection, folder: Path) -> None:
    if section.digest and digest != section.digest:
        fix = "Use the Python version the run was made with, its standard library is the data."
        if section.kind == "text":
            fix = "Get exactly the files the run names: same bytes, same names, nothing else in the --data folder."
        raise DataError(
            f"the data in {folder} is not what the manifest names: its digest is {digest[:16]}…, "
            f"the run's is {section.digest[:16]}…",
            fix,
        )
