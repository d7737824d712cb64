"""Writing to a terminal without ever waiting for it."""

from __future__ import annotations

import io
import os
import select
from typing import TextIO

CLOSE_WAIT_S = 0.3
"""Seconds that closing waits for the terminal to take pending text."""


class NonblockingStream(io.TextIOBase):
    """A text stream onto the terminal of another stream. Text that the terminal does not take now (Ctrl+S, a dead
    connection) stays `pending`, and is written by a later `flush`.

    The terminal is opened a second time: a flag on the first stream would change the shell's, too. Raises OSError when
    that is impossible."""

    encoding = "utf-8"

    def __init__(self, terminal: TextIO) -> None:
        self._fd = os.open(os.ttyname(terminal.fileno()), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._left = b""

    @property
    def pending(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._left)

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str, /) -> int:
        self._left += text.encode()
        return len(text)

    def flush(self) -> None:
        """Write what the terminal takes. A terminal that is gone takes everything, unseen."""
        while self._left:
            try:
                written = os.write(self._fd, self._left)
                self._left = self._left[written:] if written else b""  # else `close` would never end
            except BlockingIOError:
                return
            except OSError:
                self._left = b""

    def close(self) -> None:
        """Give the terminal a moment for the rest."""
        if self.closed:
            return
        self.flush()
        while self._left and select.select([], [self._fd], [], CLOSE_WAIT_S)[1]:
            self.flush()
        self._left = b""
        super().close()
        os.close(self._fd)
