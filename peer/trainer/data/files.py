"""Reads all regular files below a folder. It follows no links, so that nothing outside the folder is read."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from peer.errors import DataError
from peer.observe.formatting import amount
from peer.run.files.own_texts import open_below

MAX_CORPUS_BYTES = 2**32
"""Most bytes of a corpus, which is held in memory."""


def read_files(
    root: Path, wanted: Callable[[PurePosixPath], bool], unseen: Callable[[str], bool] = lambda name: False
) -> list[tuple[str, bytes]]:
    """Return (relative POSIX path, content) of the files, sorted by path. Raises DataError.

    `wanted`: whether to read the file of this relative path. `unseen`: whether to leave out folders of this name. Files
    are opened relative to the descriptor of their folder, so that nothing that changes meanwhile can lead outside
    `root`."""
    found: list[tuple[str, bytes]] = []
    total = 0
    for path, content in _walk(root, wanted, unseen):
        total += len(content)
        _check_total(root, total)
        found.append((path, content))
    return sorted(found)


def read_texts(folder: Path, files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (relative path, content without a byte order mark) of these files, in this order. Raises DataError."""
    total = 0
    for path in files:
        try:
            with os.fdopen(open_below(folder, path), "rb") as file:
                content = file.read(MAX_CORPUS_BYTES - total + 1)
        except OSError as error:
            raise _unreadable_file(str(folder / path), error) from error
        total += len(content)
        _check_total(folder, total)
        yield path, content.removeprefix(codecs.BOM_UTF8)


def _check_total(root: Path, total: int) -> None:
    if total > MAX_CORPUS_BYTES:
        raise DataError(f"{root} holds more than {amount(MAX_CORPUS_BYTES, 'bytes')}", "Give --data a smaller folder.")


def _walk(
    root: Path, wanted: Callable[[PurePosixPath], bool], unseen: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    top = root.resolve()
    for folder, below, names, descriptor in os.fwalk(top, onerror=_unreadable, follow_symlinks=False):
        below[:] = [name for name in below if not unseen(name)]  # skips the others: site-packages may be very large
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
    """Read a regular file. None: it is something else, such as a link. Raises OSError."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return None
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > MAX_CORPUS_BYTES:
            raise OSError(None, f"larger than {amount(MAX_CORPUS_BYTES, 'bytes')}")
        return file.read(size)


def _unreadable(error: OSError) -> None:
    raise _unreadable_file(str(error.filename), error) from error


def _unreadable_file(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror}", "Make it readable, or take it out of the folder.")
