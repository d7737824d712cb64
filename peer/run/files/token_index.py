"""The index of a run's token shards: `index.json`, which names every shard by its digest.

A shard is a file of raw little-endian tokens. It contains whole documents, each closed by the end token. An index is
JSON with one shard per line in one fixed form. It is parsed line by line, and a shard takes 48 bytes of memory: the
largest index, of 64 MiB and 1.9 x 10^12 tokens in full shards, takes 22 MB."""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, overload

from peer.errors import DataError

MAX_INDEX_BYTES = 64 * 2**20
SHARD_TOKENS = 2**22
"""Tokens at which a shard is full. A longer document is a shard of its own."""
MAX_SHARD_TOKENS = 2**27
MAX_VOCABULARY = 2**20
INDEX_FILE = "index.json"
TOKENIZER_FILE = "tokenizer.json"

TokenDtype = Literal["uint16", "uint32"]
Part = Literal["train", "holdout"]

_HEAD = re.compile(
    rb'\{"format": 1, "dtype": "(uint16|uint32)", "vocab_size": ([1-9]\d{0,6}), "end_token": (0|[1-9]\d{0,6}), '
    rb'"tokenizer": "([0-9a-f]{64})", "train": \[\n'
)
_SHARD = re.compile(
    rb'\{"digest": "([0-9a-f]{64})", "tokens": ([1-9]\d{0,8}), "documents": ([1-9]\d{0,8}), '
    rb'"text_bytes": ([1-9]\d{0,12})\}(,?)\n'
)
_MIDDLE = b'], "holdout": [\n'
_END = b"]}\n"
_LONGEST_LINE = 400
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard of the index. `digest`: BLAKE3 digest of the file, in hex. `text_bytes`: size of its documents in
    UTF-8. No document is empty."""

    digest: str
    tokens: int
    documents: int
    text_bytes: int


class ShardTable(Sequence[ShardEntry]):
    """The shards of one part (train or hold-out), stored compactly. A `ShardEntry` is created on access."""

    def __init__(self, entries: Iterable[ShardEntry]) -> None:
        self._digests = bytearray()
        self.tokens = array("I")
        """Number of tokens of each shard."""
        self._documents = array("I")
        self._text_bytes = array("Q")
        for entry in entries:
            self._digests += bytes.fromhex(entry.digest)
            self.tokens.append(entry.tokens)
            self._documents.append(entry.documents)
            self._text_bytes.append(entry.text_bytes)

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, number: int) -> ShardEntry: ...

    @overload
    def __getitem__(self, number: slice) -> list[ShardEntry]: ...

    def __getitem__(self, number: int | slice) -> ShardEntry | list[ShardEntry]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        digest = self._digests[_DIGEST_BYTES * number : _DIGEST_BYTES * (number + 1)].hex()
        return ShardEntry(digest, self.tokens[number], self._documents[number], self._text_bytes[number])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(ShardEntry.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(bytes(self._digests))

    def number_of(self, digest: str) -> int | None:
        """Return the index of the shard with this hex digest. None: there is none."""
        wanted, start = bytes.fromhex(digest), 0
        while (at := self._digests.find(wanted, start)) % _DIGEST_BYTES:  # true also for -1, not found
            if at < 0:
                return None
            start = at + 1
        return at // _DIGEST_BYTES

    def shares_digest(self, other: ShardTable) -> bool:
        """Return whether a shard is in both tables."""
        few, many = sorted((self, other), key=len)
        known = set(few._each_digest())
        return any(digest in known for digest in many._each_digest())

    def _each_digest(self) -> Iterator[bytes]:
        for at in range(0, len(self._digests), _DIGEST_BYTES):
            yield bytes(self._digests[at : at + _DIGEST_BYTES])


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """The token shards of a run, for training and for the hold-out. `tokenizer`: BLAKE3 digest of its tokenizer.json,
    in hex."""

    dtype: TokenDtype
    vocab_size: int
    end_token: int
    tokenizer: str
    train: ShardTable
    holdout: ShardTable

    def shard(self, digest: str) -> ShardEntry | None:
        """Return the shard with this hex digest. None: there is none."""
        for part in (self.train, self.holdout):
            if (number := part.number_of(digest)) is not None:
                return part[number]
        return None


def dtype_for(vocab_size: int) -> TokenDtype:
    """Return the smallest token type that holds the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def token_bytes(dtype: TokenDtype) -> int:
    """Return the size of one token in bytes."""
    return 2 if dtype == "uint16" else 4


def shard_bytes(index: TokenIndex, entry: ShardEntry) -> int:
    """Return the size of a shard's file in bytes."""
    return entry.tokens * token_bytes(index.dtype)


def shard_file(part: Part, number: int) -> str:
    """Return the name of a shard's file, as `peer data build` writes it."""
    return f"{part}-{number:05}.tokens"


def format_index(index: TokenIndex) -> bytes:
    """Encode an index. `parse_index` accepts only this form."""
    head = (
        f'{{"format": 1, "dtype": "{index.dtype}", "vocab_size": {index.vocab_size}, "end_token": {index.end_token}, '
        f'"tokenizer": "{index.tokenizer}", "train": [\n'
    )
    return b"".join([head.encode(), _lines(index.train), _MIDDLE, _lines(index.holdout), _END])


def parse_index(raw: bytes) -> TokenIndex:
    """Parse an index. Raises DataError, which names the line."""
    if len(raw) > MAX_INDEX_BYTES:
        raise _too_long(len(raw))
    return _parse(io.BytesIO(raw))


def read_index(path: Path) -> TokenIndex:
    """Parse an index file line by line. Raises DataError, which names the line, and OSError."""
    with path.open("rb") as file:
        if (size := file.seek(0, io.SEEK_END)) > MAX_INDEX_BYTES:
            raise _too_long(size)
        file.seek(0)
        return _parse(file)


def _parse(file: BinaryIO) -> TokenIndex:
    lines = _Lines(file)
    head = _HEAD.fullmatch(lines.next())
    if head is None:
        raise lines.wrong("is not the head of a data index of format 1")
    dtype: TokenDtype = "uint16" if head[1] == b"uint16" else "uint32"
    vocab_size, end_token = int(head[2]), int(head[3])
    if not 2 <= vocab_size <= MAX_VOCABULARY or end_token >= vocab_size or dtype != dtype_for(vocab_size):
        raise lines.wrong(f"names a vocabulary of {vocab_size} with end token {end_token} as {dtype}")
    train = ShardTable(_shards(lines, _MIDDLE))
    holdout = ShardTable(_shards(lines, _END))
    lines.end()
    if train.shares_digest(holdout):
        raise DataError("the data index names one shard for training and for the hold-out", _FIX)
    return TokenIndex(dtype, vocab_size, end_token, head[4].decode(), train, holdout)


def _too_long(nbytes: int) -> DataError:
    return DataError(f"the data index has {nbytes:,} bytes, at most {MAX_INDEX_BYTES:,} are read", _FIX)


_FIX = "Make the folder again with `peer data build`, or ask the operator of the run for its index."


class _Lines:
    """Reads an index line by line, and counts lines and bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read = 0
        self._number = 0

    def next(self) -> bytes:
        self._number += 1
        line = self._file.readline(_LONGEST_LINE)
        self._read += len(line)
        if self._read > MAX_INDEX_BYTES:  # the file may grow while it is read
            raise _too_long(self._read)
        return line

    def end(self) -> None:
        if self.next():
            raise self.wrong("follows the end of the index")

    def wrong(self, what: str) -> DataError:
        return DataError(f"line {self._number} of the data index {what}", _FIX)


def _lines(entries: Iterable[ShardEntry]) -> bytes:
    written = (
        f'{{"digest": "{entry.digest}", "tokens": {entry.tokens}, "documents": {entry.documents}, '
        f'"text_bytes": {entry.text_bytes}}}'
        for entry in entries
    )
    return ",\n".join(written).encode() + b"\n"


def _shards(lines: _Lines, behind: bytes) -> Iterator[ShardEntry]:
    """Parse the shards of one part, of which there is at least one. `behind`: the line that must follow them."""
    while True:
        found = _SHARD.fullmatch(lines.next())
        if found is None:
            raise lines.wrong("is not a shard")
        entry = ShardEntry(found[1].decode(), int(found[2]), int(found[3]), int(found[4]))
        if not 1 <= entry.documents <= entry.tokens <= MAX_SHARD_TOKENS:
            raise lines.wrong(f"names a shard of {entry.tokens} tokens and {entry.documents} documents")
        if entry.text_bytes < entry.documents:
            raise lines.wrong(f"names a shard of {entry.documents} documents with {entry.text_bytes} bytes of text")
        if entry.tokens > SHARD_TOKENS and entry.documents > 1:
            raise lines.wrong(f"names a shard of {entry.tokens} tokens, several documents share at most {SHARD_TOKENS}")
        yield entry
        if not found[5]:
            break
    if lines.next() != behind:
        raise lines.wrong("does not end the list of shards")
