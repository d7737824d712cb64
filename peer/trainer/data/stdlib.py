"""Data of kind `stdlib`: the Python source of the interpreter's own standard library."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from blake3 import blake3

from peer.trainer.data.files import read_files

HOLDOUT_ONE_IN = 50

EXCLUDED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Parts of a path that exclude a file: tests are repetitive, and packages do not belong to the interpreter."""
TABLES = frozenset({"encodings", "pydoc_data"})
"""Folders at the top that are excluded: large tables, trivial to predict."""


def split_stdlib(root: Path) -> tuple[list[bytes], list[bytes]]:
    """Split the standard library into training files and hold-out.

    The hold-out is the files whose BLAKE3, as a number, is a multiple of 50. Another interpreter version has other
    files."""
    train: list[bytes] = []
    holdout: list[bytes] = []
    for _, content in read_files(root, _is_source, EXCLUDED.__contains__):
        held = int.from_bytes(blake3(content).digest(), "big") % HOLDOUT_ONE_IN == 0
        (holdout if held else train).append(content)
    return train, holdout


def _is_source(path: PurePosixPath) -> bool:
    return path.suffix == ".py" and path.parts[0] not in TABLES and not EXCLUDED.intersection(path.parts)
