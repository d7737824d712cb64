"""Files of a person's folder that count as text, and those among them that look like secrets.

Hidden files and folders are left out, as are files that are not text. Links are not followed. No heavy library is
loaded here: the trainer looks through `--data DIR` with it, too."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from peer.errors import DataError

HEAD_BYTES = 2**13
"""Bytes at the start of a file that are looked at."""

_SECRET_NAME = re.compile(
    r"(?:.*\.)?env(?:\..*)?|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|.*\.(?:pem|key|ppk|p12|pfx|kdbx?|keystore|jks|ovpn)"
    r"|(?:.*[-_.])?(?:credentials?|secrets?|passwords?|passwd|htpasswd|netrc|pgpass)(?:\.\w+)?"
    r"|(?:client_secret|service[-_]account).*\.json|wallet\.dat|shadow",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-|\bAKIA[0-9A-Z]{16}\b|AGE-SECRET-KEY-1"
    rb"|aws_secret_access_key|\bgh[pousr]_[A-Za-z0-9]{36}|\bxox[abprs]-[0-9A-Za-z-]{10}|\bhf_[A-Za-z0-9]{34}"
)


@dataclass(frozen=True, slots=True)
class Survey:
    """The texts in a folder. `files`: paths below it with `/` between the parts, in the order in which they are read.

    `skipped_hidden` counts a hidden folder once. `suspicious`: those of `files` that look like secrets."""

    files: tuple[str, ...]
    nbytes: int
    skipped_binary: int
    skipped_hidden: int
    suspicious: list[str]

    def told(self) -> str:
        """Say it in one line: `1,204 files, 310 MB; skipped 87 binary, 12 hidden`."""
        size = f"{self.nbytes / 1e6:,.0f} MB" if self.nbytes >= 10**7 else f"{self.nbytes / 1e3:,.0f} kB"
        skipped = f"skipped {self.skipped_binary:,} binary, {self.skipped_hidden:,} hidden"
        return f"{len(self.files):,} {'file' if len(self.files) == 1 else 'files'}, {size}; {skipped}"


def survey(folder: Path, taken: Callable[[str], bool] = lambda name: False) -> Survey:
    """Look through a folder. Raises DataError for what cannot be read.

    `taken` tells by its name that a file is wanted although it is not text. Empty files are left out, uncounted."""
    found: list[tuple[bytes, str]] = []
    suspicious: list[str] = []
    nbytes = binary = hidden = 0
    try:
        top = folder.resolve(strict=True)
    except OSError as error:
        raise unreadable(str(folder), error) from error
    for place, below, names, descriptor in os.fwalk(top, onerror=_unreadable, follow_symlinks=False):
        hidden += sum(name.startswith(".") for name in (*below, *names))
        below[:] = [name for name in below if not name.startswith(".")]
        room = PurePosixPath(Path(place).relative_to(top).as_posix())
        for name in names:
            if name.startswith("."):
                continue
            path = str(room / name)
            try:
                size, head = _look(name, descriptor)
            except OSError as error:
                raise unreadable(str(folder / path), error) from error
            if size == 0:
                continue
            if not taken(name) and not is_text(head):
                binary += 1
                continue
            found.append((os.fsencode(path), path))
            nbytes += size
            if looks_secret(name, head):
                suspicious.append(path)
    files = tuple(path for _, path in sorted(found))
    return Survey(files, nbytes, binary, hidden, sorted(suspicious))


def is_text(head: bytes) -> bool:
    """Whether a file that begins so is text: UTF-8 without a zero byte. A full head may end in a character."""
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return False
    return True


def looks_secret(name: str, head: bytes) -> bool:
    """Whether a file of this name that begins so may hold a key or a password."""
    return _SECRET_NAME.fullmatch(name) is not None or _SECRET_TEXT.search(head) is not None


def open_below(folder: Path, path: str) -> int:
    """Open a plain file of a survey for reading and return its descriptor. Raises OSError.

    No link is followed on the way, so that no change since the survey leads out of the folder."""
    *parts, name = path.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        return _open_plain(name, at)
    finally:
        os.close(at)


def _look(name: str, folder: int) -> tuple[int, bytes]:
    """Return a file's size and its first bytes. Anything but a plain file has none."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return 0, b""
    descriptor = _open_plain(name, folder)
    try:
        return os.fstat(descriptor).st_size, os.read(descriptor, HEAD_BYTES)
    finally:
        os.close(descriptor)


def _open_plain(name: str, folder: int) -> int:
    # Not blocking: a pipe of that name would wait for a writer.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no plain file")
    return descriptor


def unreadable(path: str, error: OSError) -> DataError:
    """Return the error for a file or folder that cannot be read."""
    return DataError(f"{path} cannot be read: {error.strerror}", "Make it readable, or take it out of the folder.")


def _unreadable(error: OSError) -> None:
    raise unreadable(str(error.filename), error) from error
