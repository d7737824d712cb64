"""The trainer's end of the socket to its daemon: one JSON object per line.

The module imports nothing that is slow to load, so that the process notices the end of its daemon while torch is still
being imported."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

MAX_LINE = 2**20
"""Bytes of one line in either direction."""

Message = dict[str, Any]


class DaemonPipe:
    """Sends messages to the daemon, and puts those that arrive into `inbox`, from a thread that reads the socket.

    `on_end` is called when the socket closes, by the thread that notices it: the reader, a sender, or both. Its
    argument is an exit code: 3 if the socket failed or a line was not valid JSON, else 0. By default the process exits
    at once, which is safe because everything that has to survive lies in memory-mapped files."""

    def __init__(self, line: socket.socket, on_end: Callable[[int], None] = os._exit) -> None:
        self._socket = line
        self._on_end = on_end
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.given_up = 0
        """Number of the last evaluation that the daemon cancelled. Those with lower numbers are over, too."""
        threading.Thread(target=self._read, name="daemon-line", daemon=True).start()

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as file:
                while (line := file.readline(MAX_LINE)).endswith(b"\n"):
                    self._receive(json.loads(line))
        except (OSError, ValueError):
            self._on_end(3)
            return
        self._on_end(0)

    def _receive(self, message: Message) -> None:
        if message.get("op") == "give_up":
            # not queued, because a running evaluation polls this number and does not read the inbox
            self.given_up = message["number"]
        else:
            self.inbox.put(message)

    def send(self, message: Message) -> None:
        """Send a message. A failure is treated as the end of the daemon, and calls `on_end`."""
        data = json.dumps(message).encode() + b"\n"
        assert len(data) <= MAX_LINE, len(data)
        try:
            self._socket.sendall(data)
        except OSError:
            self._on_end(0)

    def close(self) -> None:
        """Close the socket. The daemon notices it at once."""
        with contextlib.suppress(OSError):  # the daemon has closed its end
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_in_child(self) -> None:
        """Close this process's copy of the socket after a fork.

        The reading thread does not exist in the child, but its file object still references the socket, so that
        `close` would not close the descriptor."""
        os.close(self._socket.detach())
