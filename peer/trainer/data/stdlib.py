"""Data of kind `stdlib`: the Python source files of the interpreter's standard library."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from blake3 import blake3

from peer.trainer.data.files import read_files

HOLDOUT_ONE_IN = 50

EXCLUDED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Names of folders whose files are left out. Tests are repetitive, and installed packages differ between machines."""
TABLES = frozenset({"encodings", "pydoc_data"})
"""Top-level folders that are left out. They hold large tables, which are trivial to predict."""


def split_stdlib(root: Path) -> tuple[list[bytes], list[bytes]]:
    """Return the contents of the standard library's files, split into (training data, hold-out). Raises DataError.

    A file is in the hold-out if its BLAKE3 digest, as a number, is a multiple of `HOLDOUT_ONE_IN`. Other versions of
    the interpreter have other files."""
    train: list[bytes] = []
    holdout: list[bytes] = []
    for _, content in read_files(root, _is_source, EXCLUDED.__contains__):
        held = int.from_bytes(blake3(content).digest(), "big") % HOLDOUT_ONE_IN == 0
        (holdout if held else train).append(content)
    return train, holdout


def _is_source(path: PurePosixPath) -> bool:
    return path.suffix == ".py" and path.parts[0] not in TABLES and not EXCLUDED.intersection(path.parts)
