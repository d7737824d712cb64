"""Content-addressed cache of artifacts, in one folder that several processes may share.

A complete file is named `<digest>` and a draft `<digest>.part`. A process that uses an artifact holds a lock on
`<digest>.use`. All changes are made under the lock of the whole cache. The locks are those of the kernel, so that a
killed process leaves none behind. Files with other names are neither counted nor deleted.

The total length of the files never exceeds the limit. A draft has its final length from the beginning. To make room,
the least recently used file is deleted, but never one in use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from peer.clock.run_clock import wall_time
from peer.errors import CacheTooSmall, HomeUnusable, file_advice
from peer.observe.formatting import amount
from peer.run.files.artifact import ArtifactRef
from peer.state.artifacts.draft import ArtifactDraft, draft_bytes
from peer.state.artifacts.verified import VerifiedFiles
from peer.user_folders import make_private

DRAFT, USE, LOCK = ".part", ".use", "lock"
BUSY_S = 10.0
"""Most seconds to wait for the lock of the cache. Other processes hold it for milliseconds."""
POLL_S = 0.002
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"([0-9a-f]{64})(\.part|\.use)?")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ArtifactCache:
    """The artifacts on this disk. All methods raise HomeUnusable when the folder cannot be made, read or written.

    `path` and `holding` return quickly. Call the other methods in a thread."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        assert limit_bytes > 0, limit_bytes
        self.limit = limit_bytes
        self.verified = VerifiedFiles()
        self._folder = folder
        with self._typed_errors(), contextlib.suppress(FileExistsError):
            make_private(folder)
        with self._locked():
            self._make_room(0)

    # -- look-up -----------------------------------------------------------------------------------------------------

    def has(self, digest: str) -> bool:
        """Return whether there is a complete file of this artifact, verified or not."""
        return _is_plain(self.file(digest))

    def path(self, digest: str, size: int) -> Path | None:
        """Return the file of an artifact that this process has verified. None: not verified, or not here."""
        path = self.file(digest)
        return path if self.verified.nbytes(path, digest) == size else None

    def check(self, digest: str, size: int) -> Path | None:
        """Return the file of an artifact, after hashing it if it was not verified yet.

        None: it is not here, or was damaged and is deleted now."""
        if (path := self.path(digest, size)) is not None:
            return path
        if not self.has(digest):
            return None
        if not self.verified.verify(self.file(digest), digest):
            self.forget(digest)
        return self.path(digest, size)

    def file(self, digest: str) -> Path:
        """Return the path of an artifact's complete file, whether it exists or not."""
        assert _DIGEST.fullmatch(digest), digest
        return self._folder / digest

    @property
    def nbytes(self) -> int:
        """Total bytes of all files, including drafts."""
        return sum(size for _, size, _ in self._entries())

    # -- changes -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def holding(self, digest: str) -> Iterator[None]:
        """Protect an artifact and its draft from deletion during the context. It need not be here yet."""
        with self._locked():
            fd = os.open(self._folder / f"{digest}{USE}", _FLAGS | os.O_CREAT, 0o600)
            try:
                # Never blocks: an exclusive lock is only held under the lock of the cache, which is ours now.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                raise
        try:
            self._touch(digest)
            yield
        finally:
            self._touch(digest)
            os.close(fd)

    def draft(self, ref: ArtifactRef) -> ArtifactDraft | None:
        """Return the draft of an artifact with the pieces that are here already, and reserve room for the rest.

        None: the artifact is complete, or another process is fetching it. Raises CacheTooSmall. The caller has to
        close the draft."""
        self.require_fit(ref)
        nbytes = draft_bytes(ref.size)
        path = self.file(ref.digest).with_name(f"{ref.digest}{DRAFT}")
        with self._locked(), contextlib.ExitStack() as failing:
            if self.has(ref.digest):
                return None
            fd = os.open(path, _FLAGS | os.O_CREAT, 0o600)
            failing.callback(os.close, fd)
            if not _try_lock(fd):
                return None
            if (had := os.fstat(fd).st_size) != nbytes:  # new, of another artifact length, or truncated
                os.ftruncate(fd, 0)
                had = 0
            self._make_room(nbytes - had)
            os.ftruncate(fd, nbytes)
            failing.pop_all()
        draft = ArtifactDraft(fd, path, ref)
        try:
            with self._typed_errors():
                draft.load()
        except HomeUnusable:
            draft.close()
            raise
        return draft

    def require_fit(self, ref: ArtifactRef) -> None:
        """Raise CacheTooSmall if the artifact alone is larger than the limit."""
        if (nbytes := draft_bytes(ref.size)) > self.limit:
            raise CacheTooSmall(
                f"an artifact of {amount(ref.size, 'bytes')} is larger than the cache, {amount(self.limit, 'bytes')}",
                f"Give a larger --cache-disk, at least {nbytes}.",
            )

    def finish(self, draft: ArtifactDraft) -> Path | None:
        """Turn a complete draft into the artifact's file and return its path. None: its digest is wrong."""
        final = self.file(draft.ref.digest)
        if not draft.finish(final):
            return None
        self._touch(draft.ref.digest)
        self.verified.trust(final, draft.ref.digest)
        return final

    def forget(self, digest: str) -> None:
        """Delete an artifact, even one in use. A process that has the file open can still read it."""
        with self._locked():
            path = self.file(digest)
            self.verified.forget(path, digest)
            path.unlink(missing_ok=True)

    def _touch(self, digest: str) -> None:
        """Set the access time to now. The modification time stays, because `VerifiedFiles` compares it."""
        path = self.file(digest)
        with contextlib.suppress(OSError):
            os.utime(path, ns=(round(wall_time() * 1e9), path.lstat().st_mtime_ns), follow_symlinks=False)

    # -- room --------------------------------------------------------------------------------------------------------

    def _entries(self) -> list[tuple[int, int, str]]:
        """Return (time of last use in ns, bytes, name) of the cache's files."""
        found = []
        with self._typed_errors(), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        found.append((facts.st_atime_ns, facts.st_size, entry.name))
        return found

    def _make_room(self, nbytes: int) -> None:
        """Delete the least recently used files until `nbytes` more fit. Raises CacheTooSmall."""
        entries = self._entries()
        files = sorted(entry for entry in entries if not entry[2].endswith(USE))
        excess = sum(size for _, size, _ in files) + nbytes - self.limit
        for _, size, name in files:
            if excess > 0 and self._drop(name):
                excess -= size
        digests = {name[:64] for _, _, name in files}
        for _, _, name in entries:
            if name.endswith(USE) and name[:64] not in digests:
                self._drop(name)
        if excess > 0 and nbytes:
            raise CacheTooSmall(
                f"{amount(nbytes, 'bytes')} more do not fit into the cache of {amount(self.limit, 'bytes')}: "
                "the rest is in use",
                f"Give a larger --cache-disk, at least {self.limit + excess}.",
            )

    def _drop(self, name: str) -> bool:
        """Delete a file of the cache unless it is in use. Return whether it was deleted."""
        path, mark = self._folder / name, self._folder / f"{name[:64]}{USE}"
        with contextlib.ExitStack() as open_files:
            for lock in (mark, path) if name.endswith(DRAFT) else (mark,):
                try:
                    fd = os.open(lock, _FLAGS)
                except FileNotFoundError:
                    continue
                open_files.callback(os.close, fd)
                if not _try_lock(fd):
                    return False
            path.unlink(missing_ok=True)
            mark.unlink(missing_ok=True)
        return True

    # -- the lock of the cache ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the cache's lock, which excludes changes by other processes and by other threads of this one."""
        with self._typed_errors():
            fd = os.open(self._folder / LOCK, _FLAGS | os.O_CREAT, 0o600)
            try:
                until = time.monotonic() + BUSY_S
                while not _try_lock(fd):
                    if time.monotonic() > until:
                        raise HomeUnusable(
                            f"another process has held the cache {self._folder} for {BUSY_S:.0f} s",
                            "End that process, or choose another --home.",
                        )
                    time.sleep(POLL_S)  # polling: flock has no timeout, and the lock is held briefly
                yield
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Raise HomeUnusable in place of errors of the file system."""
        try:
            yield
        except OSError as error:
            reason = f"cannot use the cache {self._folder}: {error.strerror}"
            raise HomeUnusable(reason, file_advice(error, self._folder / LOCK)) from error


def _try_lock(fd: int) -> bool:
    """Try to lock a file exclusively, without waiting. Return whether this process got the lock. Raises OSError where
    locks are not supported."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
