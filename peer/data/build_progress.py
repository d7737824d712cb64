"""Saves and loads the progress of a build, so that a killed build can be resumed, and locks the folder of a build."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.data.documents import Place
from peer.data.shard_writer import OURS, PartProgress
from peer.data.sources import refused
from peer.run.files.token_index import INDEX_FILE, TOKENIZER_FILE, ShardEntry
from peer.whole_files import replace_file, sync

PROGRESS_FILE = "build-progress.json"
LOCK_FILE = "build.lock"
_DRAFT = re.compile(rf"\.({PROGRESS_FILE}|{TOKENIZER_FILE}|{INDEX_FILE})\.\d+-\d+")
"""Names of temporary files of `replace_file`, which a killed build leaves behind."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """The state of a build at the end of a document, at which it can be resumed."""

    fingerprint: str
    """Digest of the sources, the tokenizer and the options. A build is only resumed with the same ones."""
    holdout_one_in: int
    place: Place = field(default_factory=Place)
    train: PartProgress = field(default_factory=PartProgress)
    holdout: PartProgress = field(default_factory=PartProgress)
    empty: int = 0
    """Number of documents without text, which are left out."""
    divisors: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Possible `holdout_one_in` -> documents that it would have put into (training data, hold-out)."""


def save(folder: Path, progress: BuildProgress) -> None:
    """Write the progress atomically: after a crash, the former or the new one is there. Raises OSError."""
    replace_file(folder / PROGRESS_FILE, json.dumps(dataclasses.asdict(progress)).encode(), mode=0o666, synced=True)


def load(folder: Path) -> BuildProgress | None:
    """Read the progress. None: the folder has none. Raises DataError when it is damaged."""
    path = folder / PROGRESS_FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        return BuildProgress(
            found["fingerprint"],
            found["holdout_one_in"],
            Place(**found["place"]),
            _part(found["train"]),
            _part(found["holdout"]),
            found["empty"],
            {int(number): (train, holdout) for number, (train, holdout) in found["divisors"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refused(f"{path} is damaged: {error}", f"Remove {folder} and build again.") from error


def _part(found: dict[str, Any]) -> PartProgress:
    closed = tuple(ShardEntry(**entry) for entry in found["closed"])
    return PartProgress(closed, found["tokens"], found["documents"], found["text_bytes"])


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create the folder of a build, or open that of a stopped one, and lock it during the context.

    Raises DataError when another process builds in the folder, when the folder has other files, and when it holds a
    complete build."""
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    _refuse_complete(folder)
    if found and LOCK_FILE not in found:
        raise refused(f"{folder} holds other files, such as {found[0]}", "Name a new or empty folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refused(f"another process builds in {folder}", "Let it end, or name another folder.") from None
        _refuse_complete(folder)  # checked again, because the process that held the lock may have completed the build
        for path in folder.iterdir():
            if _DRAFT.fullmatch(path.name):
                path.unlink()  # left by a killed build
        yield


def _refuse_complete(folder: Path) -> None:
    if (folder / INDEX_FILE).exists():
        raise refused(f"{folder} holds a complete build", "Name another folder with --out, or remove this one.")


def finish(folder: Path, tokenizer: bytes, index: bytes) -> None:
    """Write the tokenizer and then the index, which makes the build complete. Remove progress and lock.

    Raises OSError."""
    replace_file(folder / TOKENIZER_FILE, tokenizer, mode=0o666, synced=True)
    replace_file(folder / INDEX_FILE, index, mode=0o666, synced=True)
    sync(folder.resolve())
    for name in (PROGRESS_FILE, LOCK_FILE):
        (folder / name).unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove the files of a build that cannot be completed, and the folder if it is empty then."""
    for path in folder.iterdir():
        if path.name in (PROGRESS_FILE, LOCK_FILE) or OURS.fullmatch(path.name):
            path.unlink()
    with contextlib.suppress(OSError):  # the folder has other files
        folder.rmdir()
