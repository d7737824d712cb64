"""Built-in kinds of training data, as byte tokens.

Only the interpreter's own standard library is read, or regular files below the folder that the volunteer named. Links
are not followed."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from peer.errors import DataError
from peer.run.sections import DataSection

Bytes = NDArray[np.uint8]

MAX_CORPUS_BYTES = 2**32
"""Most bytes of a corpus, which lies in memory."""
BLOCK_BYTES = 64 * 2**10
TEXT_HOLDOUT_ONE_IN = 20
TEXT_HOLDOUT_FOLDER = "holdout"
STDLIB_HOLDOUT_ONE_IN = 50
MIN_WINDOWS = 4

STDLIB_EXCLUDED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Parts of a path that exclude a file: tests are repetitive, and packages do not belong to the interpreter."""
STDLIB_TABLES = frozenset({"encodings", "pydoc_data"})
"""Folders at the top that are excluded: large tables, trivial to predict."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Byte tokens. The two parts share no file (`stdlib`, `text` with a folder `holdout`) and no block (`text`)."""

    train: Bytes
    holdout: Bytes
    digest: str
    """BLAKE3 of the training bytes followed by the hold-out bytes, in hex."""


def load_corpus(section: DataSection, data_dir: str | None, context: int) -> Corpus:
    """Read all data into memory. Raises DataError, with a fix."""
    if section.kind == "stdlib":
        folder = Path(sysconfig.get_path("stdlib"))
        train, holdout = _split_stdlib(folder)
    else:
        folder = _existing_folder(data_dir)
        train, holdout = _split_text(folder)
    corpus = _corpus(train, holdout)
    _check(corpus, section, context, folder)
    return corpus


def _corpus(train: list[bytes], holdout: list[bytes]) -> Corpus:
    parts = b"".join(train), b"".join(holdout)
    digest = blake3(parts[0])
    digest.update(parts[1])
    return Corpus(np.frombuffer(parts[0], np.uint8), np.frombuffer(parts[1], np.uint8), digest.hexdigest())


def _check(corpus: Corpus, section: DataSection, context: int, folder: Path) -> None:
    needed = MIN_WINDOWS * (context + 1)
    for part, name in ((corpus.train, "training"), (corpus.holdout, "hold-out")):
        if len(part) < needed:
            wanted = 2 * (needed // BLOCK_BYTES + 1) * BLOCK_BYTES // 1024
            raise DataError(
                f"too little data in {folder}: the {name} part has {len(part)} bytes, {needed} are needed",
                f"Put more text into the --data folder: at least {wanted} KiB in all.",
            )
    if section.digest and corpus.digest != section.digest:
        fix = "Use the Python version the run was made with, its standard library is the data."
        if section.kind == "text":
            fix = "Get exactly the files the run names: same bytes, same names, nothing else in the --data folder."
        raise DataError(
            f"the data in {folder} is not what the manifest names: its digest is {corpus.digest[:16]}…, "
            f"the run's is {section.digest[:16]}…",
            fix,
        )


# -- stdlib ----------------------------------------------------------------------------------------------------------


def _split_stdlib(root: Path) -> tuple[list[bytes], list[bytes]]:
    """Split the standard library into training files and hold-out.

    The hold-out is the files whose BLAKE3, as a number, is a multiple of 50. Another interpreter version has other
    files."""
    train: list[bytes] = []
    holdout: list[bytes] = []
    for _, content in _files(root, _is_stdlib_source, STDLIB_EXCLUDED):
        held = _number(content) % STDLIB_HOLDOUT_ONE_IN == 0
        (holdout if held else train).append(content)
    return train, holdout


def _is_stdlib_source(path: PurePosixPath) -> bool:
    return path.suffix == ".py" and path.parts[0] not in STDLIB_TABLES and not STDLIB_EXCLUDED.intersection(path.parts)


# -- text ------------------------------------------------------------------------------------------------------------


def _existing_folder(data_dir: str | None) -> Path:
    if data_dir is None:
        raise DataError("this run trains on your own texts, and no folder was given", "Add --data DIR with text files.")
    folder = Path(data_dir).absolute()
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist or is no folder", "Give --data an existing folder.")
    return folder


def _split_text(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Split the volunteer's texts into training blocks and hold-out.

    The folder `holdout` is the hold-out, so that peers with different texts can evaluate on the same. Without it, about
    one block in 20 is, by a hash of its place, and at least one."""
    files = _files(folder, lambda path: True)
    apart = [content for path, content in files if path.startswith(f"{TEXT_HOLDOUT_FOLDER}/")]
    if apart:
        return [content for path, content in files if not path.startswith(f"{TEXT_HOLDOUT_FOLDER}/")], apart
    blocks = [
        (_number(f"{path}\0{at // BLOCK_BYTES}".encode(errors="surrogateescape")), content[at : at + BLOCK_BYTES])
        for path, content in files
        for at in range(0, len(content), BLOCK_BYTES)
    ]
    if not blocks:
        raise DataError(
            f"the data folder {folder} holds no text", "Put text files into it, or name another with --data."
        )
    least = min(rank for rank, _ in blocks)
    held = [rank % TEXT_HOLDOUT_ONE_IN == 0 for rank, _ in blocks]
    if not any(held):
        held = [rank == least for rank, _ in blocks]
    train = [block for (_, block), out in zip(blocks, held, strict=True) if not out]
    return train, [block for (_, block), out in zip(blocks, held, strict=True) if out]


# -- reading ---------------------------------------------------------------------------------------------------------


def _number(data: bytes) -> int:
    return int.from_bytes(blake3(data).digest(), "big")


def _files(
    root: Path, wanted: Callable[[PurePosixPath], bool], unseen: frozenset[str] = frozenset()
) -> list[tuple[str, bytes]]:
    """Return (relative posix path, content), sorted by path. `unseen`: names of folders that are not entered.

    Files are opened relative to the descriptor of the folder being walked, and links are not followed. No change
    meanwhile can therefore lead out of `root`."""
    found: list[tuple[str, bytes]] = []
    total = 0
    for path, content in _walk(root, wanted, unseen):
        total += len(content)
        if total > MAX_CORPUS_BYTES:
            raise DataError(f"{root} holds more than {MAX_CORPUS_BYTES >> 30} GiB", "Give --data a smaller folder.")
        found.append((path, content))
    return sorted(found)


def _walk(root: Path, wanted: Callable[[PurePosixPath], bool], unseen: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    top = root.resolve()
    for folder, below, names, descriptor in os.fwalk(top, onerror=_unreadable, follow_symlinks=False):
        below[:] = [name for name in below if name not in unseen]  # packages may be a hundred times the library
        place = PurePosixPath(Path(folder).relative_to(top).as_posix())
        for name in names:
            path = place / name
            if not wanted(path):
                continue
            try:
                content = _read_regular(name, descriptor)
            except OSError as error:
                raise _unreadable_file(str(top / path), error) from error
            if content is not None:
                yield str(path), content


def _read_regular(name: str, folder: int) -> bytes | None:
    """Read a regular file; None for anything else, links included. Raises OSError."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return None
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > MAX_CORPUS_BYTES:
            raise OSError(None, f"larger than {MAX_CORPUS_BYTES >> 30} GiB")
        return file.read(size)


def _unreadable(error: OSError) -> None:
    raise _unreadable_file(str(error.filename), error) from error


def _unreadable_file(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror}", "Make it readable, or take it out of the folder.")
