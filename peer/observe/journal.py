"""The append-only file of a peer's events.

Each event is one write to a file opened for appending, so a SIGKILL after `append` has returned does not lose the
event. The file is rotated at a size limit; the totals stay exact."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from peer.errors import HomeUnusable
from peer.observe.event_codec import encode
from peer.observe.events import Carried, Event
from peer.observe.totals import Totals, fold, replay, rotated_path
from peer.user_folders import make_private
from peer.whole_files import write_all

LIMIT_BYTES = 8 * 2**20

Listener = Callable[[Event, float], None]


class Journal:
    """The journal of one run, owned by one process (guaranteed by the home's lock) and used from one thread.

    `path`: the file; the rotated part is `<name>.1` beside it. `now`: returns seconds since the epoch. `limit_bytes`:
    size of the events in one file, without its first line. Raises HomeUnusable when an existing journal cannot be read,
    because totals that start at zero again would stay wrong.

    A failed write (disk full) does not stop the peer: `totals` still includes the event, `failed` holds the reason, and
    the next append first writes the totals that the file lacks."""

    def __init__(self, path: Path, now: Callable[[], float], limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self.listeners: list[Listener] = []
        """Called with each event and its time, after it is written."""
        self.failed = ""
        """Why the last write failed, as a sentence. Empty: it succeeded."""
        self._now = now
        self._limit = limit_bytes
        self._fd = -1
        self._grown = 0
        self._torn = False
        self._behind = False
        try:
            self._undo_half_rotation()
            self.totals, self.damaged = replay(path)
        except OSError as error:
            raise HomeUnusable(
                f"cannot read the journal {path}: {error.strerror}", "Give your user access to it, or move it away."
            ) from error
        self._attempt(self._open)

    def append(self, event: Event) -> None:
        """Write an event, add it to the totals and call the listeners. Does not raise when the disk is full or gone."""
        before, t = self.totals, self._now()
        self.totals = fold(before, event, t)
        line = encode(event, t)
        self.failed = ""
        if self._fd >= 0 and self._grown + len(line) > self._limit:
            self._attempt(lambda: self._rotate(before, t))
        self._attempt(lambda: self._write(line, before, t))
        for listener in self.listeners:
            listener(event, t)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self.failed = f"cannot write the journal {self.path}: {error.strerror or error}"

    def _open(self) -> None:
        make_private(self.path.parent)
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._grown = os.fstat(self._fd).st_size
        self._torn = self._grown > 0 and os.pread(self._fd, 1, self._grown - 1) != b"\n"

    def _write(self, line: bytes, before: Totals, t: float) -> None:
        if self._fd < 0:
            self._behind = True
            self._open()
        mend = b"\n" * self._torn + (_carried(before, t) if self._behind else b"")
        self._torn = self._behind = True
        write_all(self._fd, mend + line)
        self._torn = self._behind = False
        self._grown += len(line)

    def _rotate(self, before: Totals, t: float) -> None:
        """Begin a new file. At every moment the two parts together give the same totals, because `<name>.new` is
        ignored until it is renamed."""
        draft = self._draft
        fd = os.open(draft, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, _carried(before, t))
            os.fsync(fd)
            self.path.replace(rotated_path(self.path))
            draft.replace(self.path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):  # report the first error, not this one
                self._undo_half_rotation()
            raise
        os.close(self._fd)
        self._fd, self._grown, self._torn, self._behind = fd, 0, False, False

    @property
    def _draft(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def _undo_half_rotation(self) -> None:
        if rotated_path(self.path).exists() and not self.path.exists():
            rotated_path(self.path).replace(self.path)
        self._draft.unlink(missing_ok=True)


def _carried(totals: Totals, t: float) -> bytes:
    return encode(Carried(totals=totals.to_json()), t)
