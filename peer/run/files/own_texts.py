"""Finds the text files in a user's folder, and those among them that look like secrets.

Hidden files and folders and files that are not text are skipped. Links are not followed. No heavy library is loaded,
because the trainer uses this module too."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from peer.errors import DataError
from peer.protocol.policy.upload_quota import size

HEAD_BYTES = 2**13
"""Bytes at the start of a file that are examined."""

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


DEEPEST = 100
"""Largest depth of nested folders."""
MOST_ENTRIES = 5_000_000
"""Largest number of files and folders that are examined. Each text file found takes about 500 bytes of memory."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The text files in a folder. `files`: paths relative to it, with `/` between the parts, in the order in which they
    are read.

    `skipped_hidden` counts a hidden folder as one. `suspicious`: those of `files` that look like secrets. `others`:
    further counts of skipped entries, by description."""

    files: tuple[str, ...]
    nbytes: int
    skipped_binary: int
    skipped_hidden: int
    suspicious: list[str]
    others: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the counts as one line: `1,204 files, 310 MB; skipped 87 binary, 12 hidden, 3 links`."""
        skipped = {"binary": self.skipped_binary, "hidden": self.skipped_hidden}
        skipped |= {what: count for what, count in self.others.items() if count}
        listed = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
        return (
            f"{len(self.files):,} {'file' if len(self.files) == 1 else 'files'}, {size(self.nbytes)}; skipped {listed}"
        )


LINKS, EMPTY, SPECIAL = "links", "empty", "that are neither file nor folder"
"""Descriptions of further kinds of skipped entries."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """An entry of a folder that is not a folder itself. `path`: relative to the folder. `skipped`: why it is skipped,
    empty for a file that is not."""

    path: str
    skipped: str
    about: os.stat_result | None = None
    head: bytes = b""
    """The first bytes of a file that is not skipped."""


def survey(folder: Path) -> Survey:
    """Find the text files in a folder. Links are not followed. Raises DataError when something cannot be read."""
    found: list[tuple[bytes, str]] = []
    suspicious: list[str] = []
    nbytes, skipped = 0, Counter[str]()
    for entry in walk(folder, open_folder(folder)):
        if entry.skipped or not is_text(entry.head):
            skipped[entry.skipped or "binary"] += 1
            continue
        assert entry.about is not None
        found.append((os.fsencode(entry.path), entry.path))
        nbytes += entry.about.st_size
        if looks_secret(PurePosixPath(entry.path).name, entry.head):
            suspicious.append(entry.path)
    files = tuple(path for _, path in sorted(found))
    others = {what: skipped[what] for what in (LINKS, EMPTY, SPECIAL)}
    return Survey(files, nbytes, skipped["binary"], skipped["hidden"], sorted(suspicious), others)


def open_folder(folder: Path) -> int:
    """Open a folder that the user named, and return its descriptor. Raises DataError."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(str(folder), error) from error


def walk(folder: Path, descriptor: int, left_out: Callable[[str], bool] = lambda path: False) -> Iterator[FoundFile]:
    """Yield all entries below an open folder, in no particular order. A hidden folder is one entry. Closes
    `descriptor`.

    Links are not followed: every entry is opened relative to its folder's descriptor. Paths for which `left_out` is
    true are skipped. `folder`: its name in errors. Raises DataError when something cannot be read or a bound is
    exceeded."""
    for count, entry in enumerate(_walk(folder, descriptor, "", left_out, 0), 1):
        if count > MOST_ENTRIES:
            fix = "Name its folders one by one, in several builds."
            raise DataError(f"{folder} holds more than {MOST_ENTRIES:,} files", fix)
        yield entry


def _walk(
    folder: Path, descriptor: int, below: str, left_out: Callable[[str], bool], depth: int
) -> Iterator[FoundFile]:
    try:
        if depth > DEEPEST:
            raise DataError(f"{folder / below} lies more than {DEEPEST} folders deep", "Move it up, or take it out.")
        with os.scandir(descriptor) as listed:
            entries = list(listed)
        for entry in entries:
            path = below + entry.name
            try:
                if entry.name.startswith("."):
                    yield FoundFile(path, "hidden")
                elif left_out(path):
                    continue
                elif entry.is_symlink():
                    yield FoundFile(path, LINKS)
                elif entry.is_dir(follow_symlinks=False):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    inner = os.open(entry.name, flags, dir_fd=descriptor)
                    yield from _walk(folder, inner, f"{path}/", left_out, depth + 1)
                elif entry.is_file(follow_symlinks=False):
                    yield _look(path, _open_plain(entry.name, descriptor))
                else:
                    yield FoundFile(path, SPECIAL)
            except OSError as error:
                raise unreadable(str(folder / path), error) from error
    except OSError as error:
        raise unreadable(str(folder / below), error) from error
    finally:
        os.close(descriptor)


def look(path: str, real: str) -> FoundFile:
    """Examine a plain file by its absolute path, without following links. Raises OSError."""
    return _look(path, open_below(Path("/"), real.removeprefix("/")))


def _look(path: str, descriptor: int) -> FoundFile:
    """Examine an open file, and close it."""
    try:
        about = os.fstat(descriptor)
        return FoundFile(path, "" if about.st_size else EMPTY, about, os.read(descriptor, HEAD_BYTES))
    finally:
        os.close(descriptor)


def is_text(head: bytes) -> bool:
    """Return whether a file that begins with `head` is text: UTF-8 without a zero byte. A head of full length may end
    within a character."""
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return False
    return True


def looks_secret(name: str, head: bytes) -> bool:
    """Return whether a file with this name and head may contain a key or a password."""
    return _SECRET_NAME.fullmatch(name) is not None or _SECRET_TEXT.search(head) is not None


def open_below(folder: Path, path: str) -> int:
    """Open a plain file of a survey for reading, and return its descriptor. Raises OSError.

    Links are not followed, so that a change since the survey cannot lead out of the folder."""
    inner, _, name = path.rpartition("/")
    at = open_folder_below(folder, inner)
    try:
        return _open_plain(name, at)
    finally:
        os.close(at)


def open_folder_below(folder: Path, path: str) -> int:
    """Open a folder below another one without following links, as `open_below` does. An empty path means the folder
    itself."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.split("/") if path else ():
        try:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def _open_plain(name: str, folder: int) -> int:
    # Non-blocking: opening a pipe would otherwise wait for a writer.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no plain file")
    return descriptor


def unreadable(path: str, error: OSError) -> DataError:
    """Return the error for a file or folder that cannot be read."""
    return DataError(f"{path} cannot be read: {error.strerror}", "Make it readable, or take it out of the folder.")
