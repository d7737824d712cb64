"""The folder that `peer data build` writes, as a source of token shards."""

from __future__ import annotations

import contextlib
from pathlib import Path

from peer.run.files.token_index import TokenIndex, shard_bytes, shard_file


def shard_files(index: TokenIndex, folder: Path) -> dict[str, Path]:
    """Return the files of the folder that may be shards of the index, by digest. What they hold is not checked."""
    names = [(shard_file("train", number), entry) for number, entry in enumerate(index.train)]
    names += [(shard_file("holdout", number), entry) for number, entry in enumerate(index.holdout)]
    found = {}
    for name, entry in names:
        path = folder.absolute() / name
        with contextlib.suppress(OSError):
            if path.stat().st_size == shard_bytes(index, entry):
                found[entry.digest] = path
    return found
