"""The index of a run's token shards: `index.json`, which names every shard by its digest.

A shard is a file of raw little-endian tokens. Its documents are complete, each closed by the end token. An index is
JSON with one shard a line, always written the same way. It is read line by line: a hostile one costs no memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from peer.errors import DataError

MAX_INDEX_BYTES = 64 * 2**20
SHARD_TOKENS = 2**22
"""Tokens above which a shard is not filled. One longer document is a shard of its own."""
MAX_SHARD_TOKENS = 2**27
MAX_VOCABULARY = 2**20
INDEX_FILE = "index.json"
TOKENIZER_FILE = "tokenizer.json"

TokenDtype = Literal["uint16", "uint32"]
Part = Literal["train", "holdout"]

_HEAD = re.compile(
    rb'\{"format": 1, "dtype": "(uint16|uint32)", "vocab_size": (\d{1,7}), "end_token": (\d{1,7}), '
    rb'"tokenizer": "([0-9a-f]{64})", "train": \[\n'
)
_SHARD = re.compile(
    rb'\{"digest": "([0-9a-f]{64})", "tokens": (\d{1,9}), "documents": (\d{1,9}), "text_bytes": (\d{1,13})\}(,?)\n'
)
_MIDDLE = b'], "holdout": [\n'
_END = b"]}\n"
_LONGEST_LINE = 400


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in the index. `digest`: BLAKE3 of the file, in hex. `text_bytes`: of its documents as UTF-8."""

    digest: str
    tokens: int
    documents: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """The shards of a run, of training and of hold-out. `tokenizer`: BLAKE3 of its tokenizer.json, in hex."""

    dtype: TokenDtype
    vocab_size: int
    end_token: int
    tokenizer: str
    train: tuple[ShardEntry, ...]
    holdout: tuple[ShardEntry, ...]


def dtype_for(vocab_size: int) -> TokenDtype:
    """Return the smallest type of token that the vocabulary fits into."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def token_bytes(dtype: TokenDtype) -> int:
    """Return the bytes of one token."""
    return 2 if dtype == "uint16" else 4


def shard_bytes(index: TokenIndex, entry: ShardEntry) -> int:
    """Return the size of a shard's file."""
    return entry.tokens * token_bytes(index.dtype)


def shard_file(part: Part, number: int) -> str:
    """Return the name of a shard's file in the folder that `peer data build` writes."""
    return f"{part}-{number:05}.tokens"


def format_index(index: TokenIndex) -> bytes:
    """Write an index. `parse_index` takes exactly these bytes."""
    head = (
        f'{{"format": 1, "dtype": "{index.dtype}", "vocab_size": {index.vocab_size}, "end_token": {index.end_token}, '
        f'"tokenizer": "{index.tokenizer}", "train": [\n'
    )
    return b"".join([head.encode(), _lines(index.train), _MIDDLE, _lines(index.holdout), _END])


def parse_index(raw: bytes) -> TokenIndex:
    """Read an index. Raises DataError, with the line."""
    if len(raw) > MAX_INDEX_BYTES:
        raise DataError(f"the data index has {len(raw):,} bytes, at most {MAX_INDEX_BYTES:,} are read", _FIX)
    lines = _Lines(raw)
    head = _HEAD.fullmatch(lines.next())
    if head is None:
        raise lines.wrong("is not the head of a data index of format 1")
    dtype: TokenDtype = "uint16" if head[1] == b"uint16" else "uint32"
    vocab_size, end_token = int(head[2]), int(head[3])
    if not 2 <= vocab_size <= MAX_VOCABULARY or end_token >= vocab_size or dtype != dtype_for(vocab_size):
        raise lines.wrong(f"names a vocabulary of {vocab_size} with end token {end_token} as {dtype}")
    train = tuple(_shards(lines, _MIDDLE))
    holdout = tuple(_shards(lines, _END))
    lines.end()
    index = TokenIndex(dtype, vocab_size, end_token, head[4].decode(), train, holdout)
    if not {entry.digest for entry in train}.isdisjoint(entry.digest for entry in holdout):
        raise DataError("the data index names one shard for training and for the hold-out", _FIX)
    if format_index(index) != raw:  # a number with zeros before it
        raise DataError("the data index is not written as `peer data build` writes it", _FIX)
    return index


_FIX = "Make the folder again with `peer data build`, or ask the operator of the run for its index."


class _Lines:
    """The lines of an index, one at a time."""

    def __init__(self, raw: bytes) -> None:
        self._file = io.BytesIO(raw)
        self._number = 0

    def next(self) -> bytes:
        self._number += 1
        return self._file.readline(_LONGEST_LINE)

    def end(self) -> None:
        if self.next():
            raise self.wrong("follows the end of the index")

    def wrong(self, what: str) -> DataError:
        return DataError(f"line {self._number} of the data index {what}", _FIX)


def _lines(entries: tuple[ShardEntry, ...]) -> bytes:
    written = (
        f'{{"digest": "{entry.digest}", "tokens": {entry.tokens}, "documents": {entry.documents}, '
        f'"text_bytes": {entry.text_bytes}}}'
        for entry in entries
    )
    return ",\n".join(written).encode() + b"\n"


def _shards(lines: _Lines, behind: bytes) -> Iterator[ShardEntry]:
    """Read the shards of one part, of which there is at least one. `behind`: the line that follows them."""
    while True:
        found = _SHARD.fullmatch(lines.next())
        if found is None:
            raise lines.wrong("is not a shard")
        entry = ShardEntry(found[1].decode(), int(found[2]), int(found[3]), int(found[4]))
        if not 1 <= entry.documents <= entry.tokens <= MAX_SHARD_TOKENS:
            raise lines.wrong(f"names a shard of {entry.tokens} tokens and {entry.documents} documents")
        if entry.tokens > SHARD_TOKENS and entry.documents > 1:
            raise lines.wrong(f"names a shard of {entry.tokens} tokens, several documents share at most {SHARD_TOKENS}")
        yield entry
        if not found[5]:
            break
    if lines.next() != behind:
        raise lines.wrong("does not end the list of shards")
