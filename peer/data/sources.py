"""The files that texts are read from, in a fixed order, each with its kind."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from blake3 import blake3

from peer.errors import DataError
from peer.run.files.own_texts import HEAD_BYTES, Survey, is_text, looks_secret, survey

Kind = Literal["text", "jsonl", "parquet"]

_LINES = tuple(f"{name}{packed}" for name in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst"))
_PACKED_LINES = (".json.gz", ".json.zst")
_WHY = "The work stops here, and no file with a final name is half-written."


def refused(found: str, fix: str) -> DataError:
    """Return the error for an input that cannot be used."""
    return DataError(found, fix, _WHY)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with texts, as it was when the sources were looked through."""

    path: Path
    kind: Kind
    nbytes: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path, kind: Kind, about: os.stat_result) -> SourceFile:
        return cls(path, kind, about.st_size, about.st_mtime_ns, about.st_dev, about.st_ino)


@contextlib.contextmanager
def opened(file: SourceFile) -> Iterator[BinaryIO]:
    """Open a source for reading. Raises DataError when it is not the file that was looked through, or was written to
    before it was read to its end, and OSError when reading fails.

    A file is known by its inode: a link that was put in its place meanwhile leads to no other file."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
    except OSError as error:
        raise refused(f"{file.path} cannot be read: {error.strerror}", "Make it readable, or leave it out.") from error
    with os.fdopen(descriptor, "rb") as source:
        if SourceFile.of(file.path, file.kind, os.fstat(descriptor)) != file:
            raise changed(file)
        yield source
        if SourceFile.of(file.path, file.kind, os.fstat(descriptor)) != file:
            raise changed(file)


def changed(file: SourceFile) -> DataError:
    """Return the error for a source that something writes to."""
    return refused(
        f"{file.path} changed after the sources were looked through", "Run the command again when nothing writes to it."
    )


@dataclass(frozen=True, slots=True)
class Sources:
    """All files to read, in their order, and what was left out."""

    files: tuple[SourceFile, ...]
    seen: Survey

    def packages(self) -> list[str]:
        """Return the optional packages that reading the files takes."""
        wanted = {"pyarrow" for file in self.files if file.kind == "parquet"}
        wanted |= {"zstandard" for file in self.files if file.path.suffix.lower() == ".zst"}
        return sorted(wanted)

    def fingerprint(self) -> str:
        """Return a digest of all names, sizes and times, in hex. Other files have another one."""
        hasher = blake3()
        for file in self.files:
            hasher.update(
                f"{file.path}\0{file.kind}\0{file.nbytes}\0{file.mtime_ns}\0".encode(errors="surrogateescape")
            )
        return hasher.hexdigest()


def kind_of(name: str) -> Kind:
    """Tell the kind of a file by the end of its name."""
    lower = name.lower()
    if lower.endswith(".parquet"):
        return "parquet"
    return "jsonl" if lower.endswith((*_LINES, *_PACKED_LINES)) else "text"


def find(given: Sequence[Path], without: Sequence[Path] = ()) -> Sources:
    """List the files of folders and single files, each once. Raises DataError.

    The order is that of `given`, and by path within a folder. `without`: files and folders of our own among them."""
    ours = [path.resolve() for path in without]
    files: dict[Path, SourceFile] = {}
    nbytes = binary = hidden = 0
    suspicious: list[str] = []
    for source in given:
        found = survey(source, lambda name: kind_of(name) != "text") if source.is_dir() else _single(source)
        folder = source if source.is_dir() else source.parent
        binary += found.skipped_binary
        hidden += found.skipped_hidden
        suspicious += [str(folder / name) for name in found.suspicious]
        for file in _looked_up(folder, found.files):
            real = file.path.resolve()
            if any(real.is_relative_to(path) for path in ours):
                continue
            if files.setdefault(real, file) is file:
                nbytes += file.nbytes
    if not files:
        names = ", ".join(str(source) for source in given)
        raise refused(
            f"there is no text in {names}: {binary:,} files are binary, {hidden:,} are hidden",
            "Name folders or files with text in UTF-8, JSONL (also .gz, .zst) or parquet.",
        )
    paths = tuple(str(file.path) for file in files.values())
    return Sources(tuple(files.values()), Survey(paths, nbytes, binary, hidden, suspicious))


def _single(path: Path) -> Survey:
    """Look at a file that was named by itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise refused(f"{path} is neither a file nor a folder", "Write what it holds into a file.")
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise refused(f"{path} cannot be read: {error.strerror}", "Name a folder or file that you can read.") from error
    if not head:
        raise refused(f"{path} is empty", "Leave it out, or name a file with text.")
    if kind_of(path.name) == "text" and not is_text(head):
        raise refused(
            f"{path} is not text in UTF-8, and its name is not that of JSONL (also .gz, .zst) or parquet",
            "Convert it, e.g. with iconv -t UTF-8, or leave it out.",
        )
    return Survey((path.name,), about.st_size, 0, 0, [path.name] if looks_secret(path.name, head) else [])


def _looked_up(folder: Path, names: Sequence[str]) -> Iterator[SourceFile]:
    for name in names:
        path = folder / name
        try:
            about = path.stat()
        except OSError as error:
            raise refused(f"{path} cannot be read: {error.strerror}", "Run the command again.") from error
        yield SourceFile.of(path, kind_of(name), about)
