"""Files whose digest this process has checked.

A file is hashed before its first use, and again once its inode, length or time of change is another one."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from peer.state.files import digest_of, open_plain


@dataclass(frozen=True, slots=True)
class _FileIdentity:
    """The facts by which a changed file is noticed."""

    device: int
    inode: int
    nbytes: int
    changed_ns: int


class VerifiedFiles:
    """The files that were checked, each with its digest. Methods may be called from several threads."""

    def __init__(self) -> None:
        self._right: dict[tuple[Path, str], _FileIdentity] = {}
        self._wrong: dict[tuple[Path, str], _FileIdentity] = {}

    def nbytes(self, path: Path, digest: str) -> int | None:
        """Return the length of a file that is known to have this digest, as it is now; None: it is not known to."""
        identity = self._right.get((path, digest))
        return identity.nbytes if identity is not None and identity == _identity_of(path) else None

    def is_wrong(self, path: Path, digest: str) -> bool:
        """Return whether a file is known not to have this digest, as it is now."""
        identity = self._wrong.get((path, digest))
        return identity is not None and identity == _identity_of(path)

    def verify(self, path: Path, digest: str) -> bool:
        """Hash a file, and return whether it has this digest. Slow, so it runs in a thread."""
        before = _identity_of(path)
        if before is None:
            return False
        try:
            right = digest_of(path) == (digest, before.nbytes)
        except OSError:  # a disk that cannot be read is no better than wrong bytes
            right = False
        if _identity_of(path) != before:
            return False
        (self._right if right else self._wrong)[path, digest] = before
        return right

    def trust(self, path: Path, digest: str) -> None:
        """Take note that the caller has checked a file."""
        if (identity := _identity_of(path)) is not None:
            self._right[path, digest] = identity

    def forget(self, path: Path, digest: str) -> None:
        """Drop what is known of a file."""
        self._right.pop((path, digest), None)
        self._wrong.pop((path, digest), None)

    def read(self, path: Path, digest: str, start: int, most: int) -> bytes | None:
        """Return at most `most` bytes of a checked file; None when it has changed since, or ends before `start`."""
        nbytes = self.nbytes(path, digest)
        if nbytes is None or not 0 <= start < nbytes:
            return None
        wanted = min(most, nbytes - start)
        try:
            with os.fdopen(open_plain(path), "rb", buffering=0) as file:
                data = os.pread(file.fileno(), wanted, start)
        except OSError:
            return None
        return data if len(data) == wanted and self.nbytes(path, digest) == nbytes else None


def _identity_of(path: Path) -> _FileIdentity | None:
    """Return the facts of a plain file; None: there is none."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return _FileIdentity(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
