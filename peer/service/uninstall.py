"""Finds and deletes what `peer` has written on this machine for its user.

Only names that this program writes are deleted, and links are not followed. A folder that contains anything else
stays."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from peer.errors import HomeUnusable, file_advice, for_shell
from peer.run.home import KEY_FILE

OWN = frozenset(
    {
        KEY_FILE,
        f"{KEY_FILE}.lock",
        "lock",
        "control.sock",
        "runs",
        "artifacts",
        "uploads.json",
        "service.ticket",
        "service.options",
        "daemon.log",
        "config.toml",
        "web.token",
    }
)
"""Names in a home that this program writes."""
FORMER_KEY = re.compile(rf"{re.escape(KEY_FILE)}\.[1-9A-HJ-NP-Za-km-z]{{8}}\Z")
"""Name of a key that `peer id new` has replaced. The suffix is the last characters of its peer id."""
MARKS = (KEY_FILE, "lock", "service.ticket")
"""A folder that contains one of these files is recognized as a home."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A file or folder to delete, with a description and its size."""

    path: Path
    what: str
    nbytes: int


def contents_of(home: Path) -> tuple[list[Deletion], list[Path]]:
    """Return the deletable contents of a home, and the paths that are not ours.

    Raises HomeUnusable if the home is a link."""
    if home.is_symlink():
        advice = f"Name the folder itself: --home {for_shell(home.resolve())}"
        raise HomeUnusable(f"{home} is a link to {home.readlink()}", advice)
    if not home.is_dir():
        return [], []
    inside = sorted(home.iterdir())
    if not any((home / name).is_file() for name in MARKS):
        return [], inside
    ours = [path for path in inside if path.name in OWN or _is_draft(path.name) or FORMER_KEY.match(path.name)]
    others = [path for path in inside if path not in ours]
    return [Deletion(path, _what(path.name), size_of(path)) for path in ours], others


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder. Links count as zero."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size if not path.is_symlink() else 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total


def delete(things: list[Deletion], home: Path) -> None:
    """Delete the files and folders, and the home if it is empty then. Raises HomeUnusable at the first failure."""
    for one in things:
        try:
            if one.path.is_dir() and not one.path.is_symlink():
                shutil.rmtree(one.path)
            else:
                one.path.unlink(missing_ok=True)
        except OSError as error:
            raise HomeUnusable(f"cannot delete {one.path}: {error.strerror}", file_advice(error, one.path)) from error
    with contextlib.suppress(OSError):  # the home is not empty, or does not exist
        home.rmdir()


def _is_draft(name: str) -> bool:
    """Return whether a hidden file is a temporary one that a crash has left, such as `.uploads.json.4711`."""
    whole, _, pid = name.removeprefix(".").rpartition(".")
    return name.startswith(".") and whole in OWN and pid.isdecimal()


def _what(name: str) -> str:
    match name:
        case _ if name == KEY_FILE:
            return "your peer's key: its id and its standing with other peers"
        case _ if FORMER_KEY.match(name):
            return "a former key of your peer"
        case "runs":
            return "runs: journals, checkpoints, logs"
        case "artifacts":
            return "files of runs: data, tokenizers"
    return ""
