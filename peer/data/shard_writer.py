"""Writes the token shards of one part, training data or hold-out.

A shard is written to a draft file, which is renamed only after the progress that contains it was saved."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from blake3 import blake3

from peer.data.encoding import Tokens
from peer.data.sources import refused
from peer.run.files.token_index import (
    MAX_SHARD_TOKENS,
    SHARD_TOKENS,
    Part,
    ShardEntry,
    TokenDtype,
    shard_file,
    token_bytes,
)

DRAFT = ".draft"
OURS = re.compile(rf"(train|holdout)-\d{{5,}}\.tokens(?:{re.escape(DRAFT)})?")
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class PartProgress:
    """Progress of a part at the end of a document: its closed shards, and the sums of the open one."""

    closed: tuple[ShardEntry, ...] = ()
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0


@dataclass(slots=True)
class _Open:
    """The shard that is being filled, with its sums."""

    file: BinaryIO
    hasher: blake3 = field(default_factory=blake3)
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0


class ShardWriter:
    """Writes the shards of one part, continuing from `progress`. All methods raise OSError when writing fails.

    Whole documents go to a shard until it has about `SHARD_TOKENS` tokens. A document of more has a shard of its
    own."""

    def __init__(self, folder: Path, part: Part, dtype: TokenDtype, progress: PartProgress) -> None:
        self._folder = folder
        self._part: Part = part
        self._dtype = dtype
        self._closed = list(progress.closed)
        self._named = len(progress.closed)
        self._open: _Open | None = self._reopen(progress) if progress.documents else None
        self._pending: list[Tokens] = []
        self._pending_tokens = 0
        self._alone = False

    @property
    def progress(self) -> PartProgress:
        """The progress to save. Only valid between two documents."""
        assert not self._pending
        if self._open is None:
            return PartProgress(tuple(self._closed))
        return PartProgress(tuple(self._closed), self._open.tokens, self._open.documents, self._open.text_bytes)

    def add(self, tokens: Tokens) -> None:
        """Add the next tokens of the present document. Raises DataError when it is too long for any shard."""
        self._pending.append(tokens)
        self._pending_tokens += len(tokens)
        if self._alone or self._pending_tokens > SHARD_TOKENS:
            if not self._alone:
                self.close()
                self._alone = True
            self._flush()

    def end(self, nbytes: int) -> bool:
        """End the present document, after its end token was added. Return whether a shard was closed.

        `nbytes`: of the document's text."""
        before = len(self._closed)
        if self._open is not None and not self._alone and self._open.tokens + self._pending_tokens > SHARD_TOKENS:
            self.close()
        shard = self._flush()
        shard.documents += 1
        shard.text_bytes += nbytes
        if self._alone:
            self.close()
        return len(self._closed) > before

    def close(self) -> None:
        """Close the open shard, if there is one, and sync its draft to disk."""
        if self._open is None:
            return
        shard, self._open, self._alone = self._open, None, False
        with shard.file:
            shard.file.flush()
            os.fsync(shard.file.fileno())
        self._closed.append(ShardEntry(shard.hasher.hexdigest(), shard.tokens, shard.documents, shard.text_bytes))

    def sync(self) -> None:
        """Sync the open shard to disk."""
        if self._open is not None:
            self._open.file.flush()
            os.fsync(self._open.file.fileno())

    def rename_closed(self) -> None:
        """Rename the drafts of closed shards to their final names. Call it after the progress was saved."""
        for number in range(self._named, len(self._closed)):
            self._draft(number).replace(self._folder / shard_file(self._part, number))
        self._named = len(self._closed)

    def close_file(self) -> None:
        """Close the file of the open shard without completing it. The draft stays."""
        if self._open is not None:
            self._open.file.close()

    def _flush(self) -> _Open:
        shard = self._open = self._open or _Open(self._draft(len(self._closed)).open("wb"))
        for tokens in self._pending:
            content = tokens.astype(np.dtype(self._dtype).newbyteorder("<"), copy=False).tobytes()
            shard.file.write(content)
            shard.hasher.update(content)
        shard.tokens += self._pending_tokens
        self._pending, self._pending_tokens = [], 0
        if shard.tokens > MAX_SHARD_TOKENS:
            raise refused(
                f"a document has more than {MAX_SHARD_TOKENS:,} tokens",
                "Cut it into several files, or write it as JSONL with one document a line.",
            )
        return shard

    def _draft(self, number: int) -> Path:
        return self._folder / (shard_file(self._part, number) + DRAFT)

    def _reopen(self, progress: PartProgress) -> _Open:
        path, left = self._draft(len(progress.closed)), progress.tokens * token_bytes(self._dtype)
        os.truncate(path, left)
        hasher = blake3()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                hasher.update(block)
        return _Open(path.open("ab"), hasher, progress.tokens, progress.documents, progress.text_bytes)


def restore_files(folder: Path, part: Part, dtype: TokenDtype, progress: PartProgress) -> bool:
    """Make the files of a part match its saved progress. Return False when files are missing or have another length.

    Renames closed shards that still have a draft's name, and removes shards and drafts beyond the progress."""
    for number, entry in enumerate(progress.closed):
        final = folder / shard_file(part, number)
        draft = folder / (final.name + DRAFT)
        if not final.exists() and draft.exists():
            draft.replace(final)
        if not final.exists() or final.stat().st_size != entry.tokens * token_bytes(dtype):
            return False
    kept = folder / (shard_file(part, len(progress.closed)) + DRAFT)
    known = {shard_file(part, number) for number in range(len(progress.closed))}
    for path in folder.iterdir():
        ours = OURS.fullmatch(path.name)
        if ours and ours[1] == part and path.name not in known and not (progress.documents and path == kept):
            path.unlink()
    return not progress.documents or (kept.exists() and kept.stat().st_size >= progress.tokens * token_bytes(dtype))
