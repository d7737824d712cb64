"""The folder that `peer data build` writes, as a source of token shards."""

from __future__ import annotations

import contextlib
from pathlib import Path

from peer.run.files.token_index import Part, ShardTable, TokenIndex, shard_bytes, shard_file


def shard_files(index: TokenIndex, folder: Path) -> dict[str, Path]:
    """Return the files in the folder that may be shards of the index, by digest. They match in name and size. Their
    content is not checked."""
    parts: tuple[tuple[Part, ShardTable], ...] = (("train", index.train), ("holdout", index.holdout))
    found = {}
    for part, entries in parts:
        for number, entry in enumerate(entries):
            path = folder.absolute() / shard_file(part, number)
            with contextlib.suppress(OSError):
                if path.stat().st_size == shard_bytes(index, entry):
                    found[entry.digest] = path
    return found
