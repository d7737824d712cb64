"""Provides the tokens for an evaluation: the run's hold-out, exactly as its trainers use it, or a user's folder."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peer.errors import DataError
from peer.result.model import OpenedRun
from peer.run.files.own_texts import survey
from peer.run.files.token_index import INDEX_FILE, TokenIndex, read_index, shard_bytes, shard_file
from peer.state.files import digest_of
from peer.trainer.data.corpus import Tokens
from peer.trainer.data.files import read_texts
from peer.trainer.data.stdlib import split_stdlib
from peer.trainer.data.text import Passage, split_texts
from peer.trainer.data.tokenized import TokenizerFile, tokenized


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Tokens to evaluate on."""

    tokens: Tokens
    bytes_per_token: float | None
    """Average bytes of text per token. None: not known."""
    description: str
    """Origin of the tokens, for a person."""


def is_shards(folder: Path) -> bool:
    """Return whether a folder was made by `peer data build`, so that it contains tokens instead of texts."""
    return (folder / INDEX_FILE).exists()


def hold_out(run: OpenedRun, data: Path | None, scratch: Path) -> HoldOut:
    """Return the run's hold-out, or that of the folder `data`. Raises DataError, and the errors of `tokenized`.

    Texts are tokenized into files in the folder `scratch`, which has to exist as long as the tokens are used, because
    they are memory-mapped."""
    kind = run.manifest.data.kind
    if data is not None and is_shards(data):
        found = _of_shards(run, data)
    elif data is not None:
        found = _of_texts(run, data, scratch)
    elif kind == "tokens":
        found = _of_run(run)
    elif kind == "stdlib":
        found = _of_stdlib()
    else:
        raise DataError(
            "the run trains on its volunteers' own texts, so it has no hold-out of its own",
            "Add --data DIR with texts. With those of a volunteer's --data, the same part is held out as there.",
        )
    needed = run.manifest.train.context + 1
    if len(found.tokens) < needed:
        raise DataError(
            f"too little to evaluate on: {found.description} has {len(found.tokens)} tokens, a window takes {needed}",
            "Name a folder with more text.",
        )
    return found


def _of_run(run: OpenedRun) -> HoldOut:
    index, path = run.files.run.index, run.files.holdout
    if index is None or path is None:
        raise DataError(
            run.files.missing_holdout_reason or "the run's hold-out is not here",
            "Name the folder that `peer data build` made with --data, or give the run's ticket as source.",
        )
    return _mapped(index, path, "the run's hold-out")


def _of_shards(run: OpenedRun, folder: Path) -> HoldOut:
    """Return the hold-out of a folder that `peer data build` made with the run's tokenizer."""
    try:
        index = read_index(folder / INDEX_FILE)
        path = folder / shard_file("holdout", 0)
        digest, size = digest_of(path)
    except OSError as error:
        raise DataError(f"cannot read the shards in {folder}: {error.strerror or error}") from error
    ours = run.manifest.tokenizer.file
    if ours is None or index.tokenizer != ours.digest:
        raise DataError(
            f"the shards in {folder} are of another tokenizer than the run's",
            "Build them with the run's tokenizer.json, or name a folder with texts.",
        )
    entry = index.holdout[0]
    if (digest, size) != (entry.digest, shard_bytes(index, entry)):
        raise DataError(
            f"{path} is damaged: its digest is {digest[:16]}…, not {entry.digest[:16]}…",
            "Make the folder again with `peer data build`.",
        )
    return _mapped(index, path, f"the hold-out in {folder}")


def _mapped(index: TokenIndex, path: Path, told: str) -> HoldOut:
    tokens: Tokens = np.memmap(path, np.dtype(index.dtype).newbyteorder("<"), mode="r")
    entry = index.holdout[0]
    return HoldOut(tokens, entry.text_bytes / entry.tokens, told)


def _of_stdlib() -> HoldOut:
    """Return the hold-out of the interpreter's standard library, split as trainers do."""
    _, holdout = split_stdlib(Path(sysconfig.get_path("stdlib")))
    return HoldOut(np.frombuffer(b"".join(holdout), np.uint8), 1.0, "the hold-out of Python's standard library")


def _of_texts(run: OpenedRun, folder: Path, scratch: Path) -> HoldOut:
    """Return tokens of the texts in a folder. A run on volunteers' own texts uses the part that its trainers would hold
    out; any other run uses all of them."""
    found = survey(folder)
    if not found.files:
        raise DataError(f"the folder {folder} holds no text: {found.summary()}", "Name a folder with text files.")
    texts = read_texts(folder, found.files)
    if run.manifest.data.kind == "text":
        passages, told = split_texts(texts)[1], f"the hold-out of the texts in {folder}"
    else:
        passages, told = [Passage(text, True) for _, text in texts], f"the texts in {folder}"
    if run.manifest.tokenizer.kind == "bytes":
        return HoldOut(np.frombuffer(b"".join(passage.text for passage in passages), np.uint8), 1.0, told)
    section, path = run.manifest.tokenizer, run.files.run.tokenizer
    assert path is not None, "the tokenizer was asked for"
    assert section.end_token is not None
    corpus = tokenized([], passages, "", TokenizerFile(path, section.vocab_size, section.end_token), scratch)
    return HoldOut(corpus.holdout, corpus.bytes_per_token, told)
