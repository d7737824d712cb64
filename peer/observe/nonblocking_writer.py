"""Writes to a terminal without blocking."""

from __future__ import annotations

import io
import os
import select
from typing import TextIO

CLOSE_WAIT_S = 0.3
"""Seconds that `close` waits for the terminal to accept pending text."""


class NonblockingStream(io.TextIOBase):
    """A text stream to the terminal that another stream is connected to. Text that the terminal does not accept at the
    moment (Ctrl+S, a dead connection) stays pending until a later `flush`.

    The terminal is opened a second time, because O_NONBLOCK on the given stream's descriptor would also affect the
    shell. Raises OSError when the terminal cannot be opened."""

    encoding = "utf-8"

    def __init__(self, terminal: TextIO) -> None:
        self._fd = os.open(os.ttyname(terminal.fileno()), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._left = b""

    @property
    def pending(self) -> bool:
        """Whether text is still to be written."""
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
        """Write as much as the terminal accepts. Text for a terminal that is gone is discarded."""
        while self._left:
            try:
                written = os.write(self._fd, self._left)
                self._left = self._left[written:] if written else b""  # 0 bytes: give up, or `close` would loop forever
            except BlockingIOError:
                return
            except OSError:
                self._left = b""

    def close(self) -> None:
        """Write pending text for at most `CLOSE_WAIT_S` without progress, discard the rest, and close the terminal."""
        if self.closed:
            return
        self.flush()
        while self._left and select.select([], [self._fd], [], CLOSE_WAIT_S)[1]:
            self.flush()
        self._left = b""
        super().close()
        os.close(self._fd)
