"""The files under a home, and the lock by which only one process uses a home and its key."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peer.errors import HomeBusy, HomeUnusable, file_advice, for_shell
from peer.user_folders import data_folder, expand_user, make_private, system_temporary_folder
from peer.whole_files import replace_file, write_all

RECEIPTS = "receipts.chain"
LONGEST_SOCKET_PATH = 100
"""Bytes. Linux allows 108 for a Unix socket's path, other systems 104."""


def default_home() -> Path:
    """Return PEER_HOME if set, or else the system's folder for a program's data: on Linux `peer` below XDG_DATA_HOME or
    ~/.local/share.

    On macOS a home at the Linux place is used if it exists, because earlier versions created it there. Raises
    HomeUnusable for a user without a home directory."""
    if given := os.environ.get("PEER_HOME"):
        return Path(given)
    home = data_folder() / "peer"
    if sys.platform == "darwin" and not home.exists():
        from platformdirs import user_data_path

        return user_data_path("peer", appauthor=False)
    return home


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run under a home."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.toml"

    @property
    def signature(self) -> Path:
        return self.path / "manifest.toml.sig"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def log(self) -> Path:
        """The daemon's log, which `peer.observe.log_file` writes."""
        return self.path / "peer.log"

    @property
    def receipts(self) -> Path:
        """The chain of receipts, which `peer.observe.receipt_file` writes."""
        return self.path / RECEIPTS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


def write_whole(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Write a file completely or not at all. A crash or a full disk leaves the former content, and no draft.

    `synced`: return only when the file is on the disk. Raises HomeUnusable."""
    try:
        replace_file(path, data, synced=synced)
    except OSError as error:
        raise HomeUnusable(f"cannot write {path}: {error.strerror}", file_advice(error, path)) from error


KEY_FILE = "identity.key"


class Home:
    """A home directory, which is created on first use. Raises HomeUnusable when it cannot be created or entered.

    `make`: whether to create the folders. False for commands that only read: no property creates anything then."""

    def __init__(self, path: Path, *, make: bool = True) -> None:
        self.path = expand_user(path).absolute()
        self._makes = make
        if make:
            self._make(self.path)

    @property
    def identity(self) -> Path:
        return self.path / KEY_FILE

    @property
    def artifacts(self) -> Path:
        """Folder of the artifacts of all runs. May not exist yet."""
        return self.path / "artifacts"

    @property
    def control_socket(self) -> Path:
        """Path of the control socket in the home. If that path is too long for a socket, it lies in a private folder
        below the temp directory.

        Raises HomeUnusable when that folder belongs to another user or is open to others, or when its path is too long
        as well."""
        plain = self.path / "control.sock"
        if len(os.fsencode(plain)) <= LONGEST_SOCKET_PATH:
            return plain
        folder = system_temporary_folder() / f"peer-{os.getuid()}"
        path = folder / f"{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]}.sock"
        if not self._makes and not folder.exists():
            return path
        self._make(folder)
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o077:
            raise HomeUnusable(f"{folder} is not a private folder of yours", "Use a --home with a shorter path.")
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            raise HomeUnusable(f"{path} is too long for a socket", "Use a --home or a TMPDIR with a shorter path.")
        return path

    def run(self, run_id: bytes) -> RunFolder:
        """Return the folder of one run. Creates it if needed."""
        folder = self.path / "runs" / run_id.hex()[:16]
        if self._makes:
            self._make(folder)
        return RunFolder(folder)

    def discard_empty(self, run_id: bytes) -> None:
        """Remove the folders that `run` created, as far as they are empty."""
        folder = self.path / "runs" / run_id.hex()[:16]
        with contextlib.suppress(OSError):  # not empty, or not there
            for one in (folder, folder.parent, self.path):
                one.rmdir()

    @contextlib.contextmanager
    def lock(self, identity_path: Path | None = None) -> Iterator[None]:
        """Lock this home and its key, which may lie elsewhere, for this process. The locks are the kernel's, so a crash
        releases them.

        Raises HomeBusy, which names the process that holds one of them."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_locked(self.path / "lock", self.path))
            key = expand_user(identity_path or self.identity).absolute()
            self._make(key.parent)
            stack.enter_context(_locked(key.with_name(key.name + ".lock"), key))
            yield

    @staticmethod
    def _make(folder: Path) -> None:
        try:
            make_private(folder)
        except FileExistsError as error:
            raise HomeUnusable(f"{folder} is not a folder", file_advice(error, folder)) from error
        except OSError as error:
            raise HomeUnusable(
                f"cannot make the folder {folder}: {error.strerror}", file_advice(error, folder)
            ) from error


def holder_of(home: Path) -> str | None:
    """Return the process that holds a home's lock. None: no process does. Creates nothing.

    Raises HomeUnusable when the lock cannot be opened."""
    lock = home / "lock"
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HomeUnusable(f"cannot read {lock}: {error.strerror}", file_advice(error, lock)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, 20).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None


@contextlib.contextmanager
def _locked(lock: Path, what: Path) -> Iterator[None]:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HomeUnusable(f"cannot write to {lock.parent}: {error.strerror}", file_advice(error, lock)) from error
    try:
        _acquire(fd, what)
        _name_holder(fd, lock)
        yield
    finally:
        os.close(fd)


def _name_holder(fd: int, lock: Path) -> None:
    try:
        os.ftruncate(fd, 0)
        write_all(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise HomeUnusable(f"cannot write {lock}: {error.strerror}", file_advice(error, lock)) from error


def _acquire(fd: int, what: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
        raise HomeBusy(
            f"{what} is in use by process {holder}",
            f"End process {holder} with: peer leave --home {for_shell(what if what.is_dir() else what.parent)}   "
            "or give this one a --home (and key) of its own.",
        ) from None
    except OSError as error:  # some network file systems do not support locks
        raise HomeUnusable(f"cannot lock {what}: {error.strerror}", "Choose a --home on a local disk.") from error
