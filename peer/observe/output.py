"""Output that outlives its reader: a terminal that was closed, or a pipe whose other end is gone, raises nothing."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TextIO

GONE = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO, errno.EBADF})


@contextlib.contextmanager
def outliving(stream: TextIO) -> Iterator[None]:
    """Around a write to `stream`. When the stream's reader is gone, later output goes to the null device.

    Other errors of the stream, such as a full disk behind it, lose this write alone."""
    try:
        yield
    except OSError as error:
        if error.errno in GONE:
            _silence(stream)


def _silence(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        descriptor = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, descriptor)
        os.close(null)
