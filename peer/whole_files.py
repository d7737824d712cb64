"""Writes that either succeed completely or fail: of all bytes to a descriptor, and of whole files."""

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
"""Numbers for the temporary files of this process, because two threads may write one file at the same time."""


class NothingWritten(OSError):
    """A write wrote no byte, and the system reported no error."""


def write_all(descriptor: int, data: bytes | memoryview, at: int | None = None) -> None:
    """Write all bytes to a descriptor. Waits if another program has made the pipe or terminal non-blocking.

    at: offset in the file; None: the descriptor's position. Raises OSError: after a short write, the next write raises
    the cause, such as a full disk, a quota or a limit of file sizes. Raises NothingWritten if a write writes no byte,
    because the loop would not end."""
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
    """Replace a file atomically. After a crash or on a full disk the former file remains, and a reader sees one of the
    two.

    mode: permissions, minus the umask. synced: force the bytes to disk before returning. Raises OSError, and then
    leaves no temporary file."""
    with _drafted(path, data, mode, synced) as draft:
        draft.replace(path)


def create_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Create a file atomically, with its bytes forced to disk before returning.

    Raises OSError; FileExistsError if anything exists at that path. Nothing is overwritten."""
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
            draft.unlink()  # left by a killed process that had our process id
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(descriptor, data)
            if synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield draft
    finally:
        with contextlib.suppress(OSError):  # the draft was renamed, or another error is being raised
            draft.unlink()


def sync(path: Path) -> None:
    """Force a file, or the entries of a folder, to disk. Raises OSError, also for a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
