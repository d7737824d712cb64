"""The trainer's end of the socket to its daemon: JSON objects, one per line.

The module imports nothing heavy. It reads while torch is still being loaded, so that the end of the daemon is
noticed."""

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
    """Reads on a thread of its own. Calls `on_end` when the socket closes, on the thread that notices it, and perhaps
    again on the other one.

    By default the process ends then at once, whatever it does. All that has to survive lies in memory-mapped files.
    `on_end` is given an exit code: 3 when the socket broke or a line of it was no message, else 0."""

    def __init__(self, line: socket.socket, on_end: Callable[[int], None] = os._exit) -> None:
        self._socket = line
        self._on_end = on_end
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.given_up = 0
        """Number of the last evaluation that nobody waits for; the earlier ones are over too."""
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
            self.given_up = message["number"]  # seen in the middle of an evaluation, which reads no commands
        else:
            self.inbox.put(message)

    def send(self, message: Message) -> None:
        """Send a message. A failure counts as the end of the socket, as the daemon is dead."""
        data = json.dumps(message).encode() + b"\n"
        assert len(data) <= MAX_LINE, len(data)
        try:
            self._socket.sendall(data)
        except OSError:
            self._on_end(0)

    def close(self) -> None:
        """Close the socket. The daemon notices it at once."""
        with contextlib.suppress(OSError):  # the daemon's end is closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_in_child(self) -> None:
        """Close the copy of the socket in a forked child. The thread that reads does not exist there, but its file
        still keeps `close` from closing the descriptor."""
        os.close(self._socket.detach())
