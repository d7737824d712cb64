"""Makes the standard streams safe to use when they are closed, full, without a reader, or cannot encode a character.

`prepare_streams` replaces `sys.stdout` and `sys.stderr` once, at the start of the program. A failed write to standard
output raises OutputFailed, so that a command whose output is lost ends with an error. A daemon ignores the loss: see
`optional_output`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from peer.errors import OutputLost
from peer.whole_files import NothingWritten, write_all

READER_GONE = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO})
"""Errors of a pipe whose other end is closed, and of a terminal that has hung up."""


class OutputFailed(OSError):
    """A write to standard output failed. Not raised when the reader of a pipe has gone."""


def prepare_streams() -> None:
    """Make all three standard streams usable, even if the caller started the program without some of them.

    A closed descriptor is opened at once: otherwise the next file that the program opens would get its number, and
    printed text would be written into that file. Characters that a stream's encoding lacks are written as escapes."""
    _open_closed_descriptors()
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - stays open until the program ends
    sys.stdout = _stream(sys.stdout, 1, is_required=True)
    sys.stderr = _stream(sys.stderr, 2, is_required=False)


@contextlib.contextmanager
def optional_output() -> Iterator[None]:
    """Ignore OSError from a write whose loss is not worth ending the program for."""
    with contextlib.suppress(OSError):
        yield


def _open_closed_descriptors() -> None:
    """Open those of the descriptors 0 to 2 that are closed. Descriptor 1 is opened for reading only, so that a write to
    it fails as it would on a closed descriptor."""
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, mode)  # the lowest free number: `descriptor` itself
            assert opened == descriptor
            os.set_inheritable(descriptor, True)


def _stream(given: TextIO | None, descriptor: int, *, is_required: bool) -> io.TextIOWrapper:
    raw = _Descriptor(descriptor, is_required=is_required)
    encoding = getattr(given, "encoding", None) or "utf-8"
    # Unbuffered: a buffer would keep text whose write failed, and fail again when the program ends.
    return io.TextIOWrapper(raw, encoding, errors="backslashreplace", line_buffering=True)


class _Descriptor(io.RawIOBase):
    """Writes all data to a descriptor. After its reader has gone, writes are ignored.

    `is_required`: other failures raise OutputFailed; otherwise they are ignored, too."""

    def __init__(self, descriptor: int, *, is_required: bool) -> None:
        self.name = descriptor
        self._is_required = is_required
        self._reader_gone = False

    def fileno(self) -> int:
        return self.name

    def isatty(self) -> bool:
        return os.isatty(self.name)

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        rest = memoryview(data).cast("B")  # type: ignore[arg-type]
        try:
            if not self._reader_gone:
                write_all(self.name, rest)
        except OSError as error:
            self._reader_gone = error.errno in READER_GONE and not isinstance(error, NothingWritten)
            if self._is_required and not self._reader_gone:
                raise OutputFailed(error.errno, error.strerror) from error
        return len(rest)


def output_lost(error: OutputFailed) -> OutputLost:
    """Return the error with which a command ends when its output could not be written."""
    return OutputLost(f"cannot write to standard output: {error.strerror}")
