"""Remembers the files whose digest this process has checked.

A file is hashed before its first use, and again when its inode, length or modification time has changed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from peer.state.files import digest_of, open_plain


@dataclass(frozen=True, slots=True)
class _FileIdentity:
    """The attributes of a file that show whether it has changed."""

    device: int
    inode: int
    nbytes: int
    changed_ns: int


class VerifiedFiles:
    """The files that were checked, those with the right digest and those with a wrong one. Its methods may be called
    from any thread."""

    def __init__(self) -> None:
        self._right: dict[tuple[Path, str], _FileIdentity] = {}
        self._wrong: dict[tuple[Path, str], _FileIdentity] = {}

    def nbytes(self, path: Path, digest: str) -> int | None:
        """Return the length of a verified file. None: it was not verified, or has changed since."""
        identity = self._right.get((path, digest))
        return identity.nbytes if identity is not None and identity == _identity_of(path) else None

    def is_wrong(self, path: Path, digest: str) -> bool:
        """Return whether a check found another digest, and the file has not changed since."""
        identity = self._wrong.get((path, digest))
        return identity is not None and identity == _identity_of(path)

    def verify(self, path: Path, digest: str) -> bool:
        """Hash a file and return whether it has this digest. Blocks, so call it in a thread."""
        before = _identity_of(path)
        if before is None:
            return False
        try:
            right = digest_of(path) == (digest, before.nbytes)
        except OSError:  # an unreadable file is as useless as one with wrong bytes
            right = False
        if _identity_of(path) != before:
            return False
        (self._right if right else self._wrong)[path, digest] = before
        return right

    def trust(self, path: Path, digest: str) -> None:
        """Mark a file as verified, because the caller has checked it."""
        if (identity := _identity_of(path)) is not None:
            self._right[path, digest] = identity

    def forget(self, path: Path, digest: str) -> None:
        """Discard the result of a file's check."""
        self._right.pop((path, digest), None)
        self._wrong.pop((path, digest), None)

    def read(self, path: Path, digest: str, start: int, most: int) -> bytes | None:
        """Return up to `most` bytes of a verified file from `start`.

        None: the file is not verified or has changed, or `start` is beyond its end."""
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
    """Return the attributes of a plain file. None: there is no such file, or it is not plain."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return _FileIdentity(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
