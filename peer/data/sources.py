"""Finds the files to read texts from, in a fixed order, and their kinds."""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Literal

from blake3 import blake3

from peer.errors import DataError
from peer.run.files.own_texts import (
    EMPTY,
    LINKS,
    MOST_ENTRIES,
    SPECIAL,
    FoundFile,
    Survey,
    is_text,
    look,
    looks_secret,
    open_folder,
    open_folder_below,
    unreadable,
    walk,
)

Kind = Literal["text", "jsonl", "parquet"]

_LINES = tuple(f"{name}{packed}" for name in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst"))
_PACKED_LINES = (".json.gz", ".json.zst")
_TABLES = tuple(f"{name}{packed}" for name in (".csv", ".tsv") for packed in ("", ".gz", ".zst"))
_PACKED = (
    *(".tar", ".tgz", ".zip", ".7z", ".rar", ".gz", ".zst", ".xz", ".bz2", ".lz4"),
    *(".arrow", ".feather", ".ipc", ".avro", ".orc", ".tfrecord", ".tfrecords", ".mds"),
)
_TEXTS = (".txt", ".text", ".md")
EXCLUDED, BROKEN, AGAIN = "excluded", "links to nothing", "found twice"
"""Reasons for leaving files out, in addition to those of a survey."""
HUB = re.compile(r"^(.*/(?:datasets|models|spaces)--[^/]+)/snapshots/")
"""Matches paths in a cache of the Hugging Face hub, where the files of snapshots are links to blobs. Group 1 is the
folder of the repository."""
HUB_STORES = frozenset({"blobs", "refs"})
"""Folders of such a repository that are left out, because `snapshots` has their files under their real names."""
MOST_LINKS = 40
"""Most links in a chain that leads to a file, the same as Linux allows in one path."""
MOST_SNIFFED = 2**20
"""Most bytes of a line that is read to determine what a .json file contains."""
SHOWN = 5
"""Most files that one error names."""
_WHY = "The work stops here, and no file with a final name is half-written."


def refused(found: str, fix: str) -> DataError:
    """Return the error for a file or folder that cannot be used."""
    return DataError(found, fix, _WHY)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with texts, with its attributes at the time when the sources were searched."""

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
    """Open a source for reading during the context.

    Raises DataError when the file has changed since the sources were searched, or changes during the context, and
    OSError when reading fails. The inode is compared, so that a file or link that has taken its place is noticed."""
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
    """Return the error for a source that changed after the search."""
    return refused(
        f"{file.path} changed after the sources were looked through", "Run the command again when nothing writes to it."
    )


@dataclass(frozen=True, slots=True)
class Sources:
    """Result of a search: all files to read, in order, and which files were left out."""

    files: tuple[SourceFile, ...]
    survey: Survey
    """Counts of the files that are read and of those left out, for the operator."""
    outside: dict[str, str] = field(default_factory=dict)
    """Link that was not followed -> its real target, which is outside of the sources."""
    linked: int = 0
    """Number of files that were reached by a link."""

    def packages(self) -> list[str]:
        """Return the names of the optional packages that are needed to read the files."""
        wanted = {"pyarrow" for file in self.files if file.kind == "parquet"}
        wanted |= {"zstandard" for file in self.files if file.path.suffix.lower() == ".zst"}
        return sorted(wanted)

    def fingerprint(self) -> str:
        """Return a digest, in hex, of the paths, kinds, sizes and modification times of all files."""
        hasher = blake3()
        for file in self.files:
            hasher.update(
                f"{file.path}\0{file.kind}\0{file.nbytes}\0{file.mtime_ns}\0".encode(errors="surrogateescape")
            )
        return hasher.hexdigest()


def kind_of(name: str) -> Kind:
    """Return the kind of a file by the suffix of its name."""
    lower = name.lower()
    if lower.endswith(".parquet"):
        return "parquet"
    return "jsonl" if lower.endswith((*_LINES, *_PACKED_LINES)) else "text"


def find(
    given: Sequence[Path],
    without: Sequence[Path] = (),
    exclude: Sequence[str] = (),
    agreed: Collection[str] = (),
) -> Sources:
    """Find the files to read in folders and single files, each once. Raises DataError.

    Files are in the order of `given`, and sorted by path within a folder. `without`: files and folders of this program
    among them, which are not read. `exclude`: shell patterns; files whose name or path below the folder matches are
    left out. Links are followed into the given folders, within a cache of the Hugging Face hub, and to the targets in
    `agreed`, to which the operator has agreed. Other links are returned in `Sources.outside`."""
    return _Search(given, without, exclude, agreed).run()


class _Search:
    """One search through all sources: first the files in the folders, then the targets of links."""

    def __init__(
        self, given: Sequence[Path], without: Sequence[Path], exclude: Sequence[str], agreed: Collection[str]
    ) -> None:
        self._given = given
        self._ours = [os.path.realpath(path) for path in without]
        self._exclude = [pattern.rstrip("/") for pattern in exclude]
        self._open = [*(os.path.realpath(path) for path in given if path.is_dir()), *agreed]
        """Real paths of the files and folders to which links may lead."""
        self._files: dict[tuple[int, int], tuple[int, SourceFile]] = {}
        """(device, inode) -> (index of the source in `given`, file), so that a file with several names is read once."""
        self._links: deque[tuple[int, Path, tuple[str, ...]]] = deque()
        """Links to follow: (index of the source, path, real paths of the folders of the links that led to it)."""
        self._entered: set[str] = set()
        self._skipped = Counter[str]()
        self._suspicious: list[str] = []
        self._outside: dict[str, str] = {}
        self._unread: list[str] = []
        self._linked = 0
        self._seen = 0

    def run(self) -> Sources:
        for number, source in enumerate(self._given):
            if source.is_dir():
                self._folder(number, source, open_folder(source), os.path.realpath(source), ())
            else:
                self._single(number, source)
        while self._links:
            self._follow(*self._links.popleft())
        files = tuple(file for _, file in sorted(self._files.values(), key=_rank))
        if self._unread:
            more = f" and {len(self._unread) - SHOWN:,} more" if len(self._unread) > SHOWN else ""
            raise refused(
                f"these files are not read as they are: {'; '.join(self._unread[:SHOWN])}{more}",
                "Convert them, or leave them out: --exclude PATTERN, such as --exclude '*.csv'.",
            )
        if not files and not self._outside:
            names = ", ".join(str(source) for source in self._given)
            left_out = ", ".join(f"{count:,} {what}" for what, count in self._counts().items() if count)
            raise refused(
                f"there is no text in {names}: skipped {left_out or 'nothing'}",
                "Name folders or files with text in UTF-8, JSONL (also .gz, .zst) or parquet.",
            )
        skipped = self._counts()
        survey = Survey(
            tuple(str(file.path) for file in files),
            sum(file.nbytes for file in files),
            skipped.pop("binary"),
            skipped.pop("hidden"),
            sorted(self._suspicious),
            skipped,
        )
        return Sources(files, survey, self._outside, self._linked)

    def _counts(self) -> dict[str, int]:
        return {what: self._skipped[what] for what in ("binary", "hidden", EXCLUDED, EMPTY, SPECIAL, BROKEN, AGAIN)}

    def _folder(self, number: int, folder: Path, descriptor: int, real: str, through: tuple[str, ...]) -> None:
        """Add the files of a folder, given by its open descriptor.

        `real`: its real path. `through`: real paths of the folders that contain the links which led to it."""
        for entry in walk(folder, descriptor, lambda path: self._left_out(path, real)):
            self._seen += 1
            if self._seen > MOST_ENTRIES:
                raise refused(f"the sources hold more than {MOST_ENTRIES:,} files", "Build them in several parts.")
            path = folder / entry.path
            if entry.skipped == LINKS:
                self._links.append((number, path, through))
            else:
                self._file(number, path, f"{real}/{entry.path}", entry, linked=bool(through))

    def _left_out(self, path: str, real: str) -> bool:
        name = path.rpartition("/")[2]
        if any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in self._exclude):
            self._skipped[EXCLUDED] += 1
            return True
        if name in HUB_STORES:  # only in `snapshots` the names of these files show their kinds
            snapshots = Path(real, path).with_name("snapshots")
            return HUB.search(f"{snapshots}/") is not None and snapshots.is_dir()
        return False

    def _single(self, number: int, path: Path) -> None:
        """Add a single file of `given`."""
        if self._left_out(path.name, os.path.realpath(path.parent)):
            return
        if path.is_symlink():
            with contextlib.suppress(OSError):  # `_follow` counts a broken link
                _check_kind(path)  # bash's <(…) is a link to a pipe, whose target has no real path
            self._open.append(link := os.path.realpath(path.parent))
            self._follow(number, path, ())
            self._open.remove(link)
            return
        real = os.path.realpath(path)
        try:
            _check_kind(path)
            entry = look(path.name, real)
        except OSError as error:
            fix = "Name a folder or file that you can read."
            raise refused(f"{path} cannot be read: {error.strerror}", fix) from error
        if entry.skipped:
            raise refused(f"{path} is empty", "Leave it out, or name a file with text.")
        if kind_of(path.name) == "text" and not is_text(entry.head) and skip_reason(path.name) is None:
            raise refused(
                f"{path} is not text in UTF-8, and its name is not that of JSONL (also .gz, .zst) or parquet",
                "Convert it, e.g. with iconv -t UTF-8, or leave it out.",
            )
        self._file(number, path, real, entry)

    def _follow(self, number: int, path: Path, through: tuple[str, ...]) -> None:
        """Add the file or folder that a link leads to, or list the link in `outside`."""
        try:
            real = os.path.realpath(path, strict=True)
        except FileNotFoundError:
            self._skipped[BROKEN] += 1
            return
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _loop(path) from error
            raise unreadable(str(path), error) from error
        through = (os.path.realpath(path.parent), *through)
        if len(through) > MOST_LINKS or any(_within(folder, real) for folder in through):
            raise _loop(path)
        if not any(_within(real, folder) for folder in self._open) and not _in_hub(through[0], real):
            self._outside[str(path)] = real
            return
        try:
            if not Path(real).is_dir():
                self._file(number, path, real, look(path.name, real), linked=True)
            elif real not in self._entered:
                self._entered.add(real)
                self._folder(number, path, open_folder_below(Path("/"), real.removeprefix("/")), real, through)
        except OSError as error:
            raise unreadable(str(path), error) from error

    def _file(self, number: int, path: Path, real: str, entry: FoundFile, *, linked: bool = False) -> None:
        if any(_within(real, ours) for ours in self._ours):
            return
        if entry.skipped:
            self._skipped[entry.skipped] += 1
            return
        assert entry.about is not None
        key = (entry.about.st_dev, entry.about.st_ino)
        if key in self._files:
            self._skipped[AGAIN] += 1
            return
        named = path if path.suffix else Path(real)  # in the hub's cache, only one of link and target has a suffix
        file = SourceFile.of(path, kind_of(named.name), entry.about)
        why = skip_reason(named.name) or (_not_utf8(entry.head, named.name) if file.kind == "text" else None)
        if file.kind == "text" and why is None and named.suffix.lower() == ".json":
            file, why = _classify_json(file)
        if why is not None:
            self._unread.append(f"{path} ({why})")
        elif file.kind == "text" and not is_text(entry.head):
            self._skipped["binary"] += 1
        else:
            self._files[key] = (number, file)
            self._linked += linked
            if looks_secret(path.name, entry.head) or looks_secret(Path(real).name, entry.head):
                self._suspicious.append(str(path))


def _check_kind(path: Path) -> None:
    """Raise DataError for a pipe, a socket or a device, and OSError if there is nothing at the path."""
    if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
        raise refused(f"{path} is neither a file nor a folder", "Write what it holds into a file.")


def _rank(found: tuple[int, SourceFile]) -> tuple[int, bytes]:
    return found[0], os.fsencode(found[1].path)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _loop(path: Path) -> DataError:
    return refused(
        f"the link {path} leads back to a folder that it lies in", "Remove it, or add --exclude with its name."
    )


def _in_hub(folder: str, real: str) -> bool:
    """Return whether a file is a blob of the repository that this folder of a Hugging Face cache belongs to.

    `real`: the file's real path."""
    repository = HUB.search(f"{folder}/")
    return repository is not None and Path(real).parent == Path(repository[1], "blobs")


# -- files that look like text but would not be read correctly ---------------------------------------------------------


def skip_reason(name: str) -> str | None:
    """Return why a file of this name cannot be read. None: its name is no reason."""
    lower = name.lower()
    if kind_of(name) != "text":
        return None
    if lower.endswith(_TABLES):
        return "a table: write its texts as JSONL or parquet"
    return "packed, or a format that is not read" if lower.endswith(_PACKED) else None


def _not_utf8(head: bytes, name: str) -> str | None:
    wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if wide or (name.lower().endswith(_TEXTS) and not is_text(head)):
        return "UTF-16, not UTF-8" if wide else "not text in UTF-8"
    return None


def _classify_json(file: SourceFile) -> tuple[SourceFile, str | None]:
    """Determine whether a .json file has JSON lines or is a single JSON document, such as a configuration.

    Returns the file with its kind, and the reason why it is not read (None: it is). Raises DataError."""
    try:
        with opened(file) as source:
            read = iter(lambda: source.readline(MOST_SNIFFED), b"")
            lines = filter(None, (line.removeprefix(codecs.BOM_UTF8).strip() for line in read))
            first, second = next(lines, b""), next(lines, b"")
    except OSError as error:
        raise unreadable(str(file.path), error) from error
    records = replace(file, kind="jsonl")
    table = "a list of records: write one record a line, and name it .jsonl"
    try:
        value = json.loads(first, parse_int=str)
    except (ValueError, RecursionError):
        if len(first) >= MOST_SNIFFED // 2 and first[:1] == b"{":
            return file, "a line of JSON too long to look through: name it .jsonl, or .txt if it is one text"
        return file, table if (first + second).replace(b" ", b"").startswith(b"[{") else None
    if isinstance(value, dict):
        if isinstance(value.get("text"), str):
            return records, None
        if "text" in value or second.startswith(b"{"):
            return file, "JSON without a string `text` in each line"
        return file, None
    return file, table if isinstance(value, list) and value and isinstance(value[0], dict) else None
