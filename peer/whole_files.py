"""Writes to files that succeed as a whole or fail: all bytes of one write, and a file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
from collections.abc import Iterator
from pathlib import Path

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of link(2) on a file system without hard links, such as vfat and some network shares."""
_drafts = itertools.count()
"""Numbers of the drafts of this process: two threads may write one file at the same time."""


class NothingWritten(OSError):
    """The system took no byte of a write and named no cause."""


def write_all(descriptor: int, data: bytes | memoryview, at: int | None = None) -> None:
    """Write all bytes to a descriptor; waits where another program has made a pipe or terminal non-blocking.

    `at`: the offset in the file; None: where the descriptor stands. Raises OSError. After a short write, the next one
    raises the error with its cause: a full disk, a quota, a limit of file sizes. A write of no byte raises
    NothingWritten, because a loop would never end."""
    rest = memoryview(data).cast("B")
    while rest:
        try:
            written = os.write(descriptor, rest) if at is None else os.pwrite(descriptor, rest, at)
        except BlockingIOError:
            select.select([], [descriptor], [])
            continue
        if not written:
            raise NothingWritten(errno.EIO, os.strerror(errno.EIO))
        rest = rest[written:]
        at = None if at is None else at + written


def replace_file(path: Path, data: bytes, *, mode: int = 0o600, synced: bool = False) -> None:
    """Write a file completely or not at all: a crash or a full disk leaves the former one. A reader finds one of them.

    mode: permissions, less the umask. synced: the bytes are on the disk when this returns. Raises OSError, and leaves
    no draft then."""
    with _drafted(path, data, mode, synced) as draft:
        draft.replace(path)


def create_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file completely or not at all; its bytes are on the disk when this returns.

    Raises OSError: FileExistsError where there is anything at that path. It is never overwritten."""
    with _drafted(path, data, mode, synced=True) as draft:
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # A crash between these two lines leaves an empty file.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
            draft.replace(path)


@contextlib.contextmanager
def _drafted(path: Path, data: bytes, mode: int, synced: bool) -> Iterator[Path]:
    draft = path.with_name(f".{path.name}.{os.getpid()}-{next(_drafts)}")
    try:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()  # of a killed process with our process id
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(descriptor, data)
            if synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield draft
    finally:
        with contextlib.suppress(OSError):  # it was renamed, or the first error is raised
            draft.unlink()


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk. Raises OSError, also for a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
