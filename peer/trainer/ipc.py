"""The trainer's end of the socket to its daemon: JSON objects, one per line.

The module imports nothing heavy. It reads while torch is still being loaded, so that the end of the daemon is
noticed."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from typing import Any

MAX_LINE = 2**20
"""Bytes of one line in either direction."""

Message = dict[str, Any]


class DaemonPipe:
    """Reads on a thread of its own.

    When the socket closes, the process ends at once, whatever it does. All that has to survive lies in memory-mapped
    files."""

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.given_up = 0
        """Number of the last evaluation that nobody waits for; the earlier ones are over too."""
        threading.Thread(target=self._read, name="daemon-line", daemon=True).start()

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as file:
                while (line := file.readline(MAX_LINE)).endswith(b"\n"):
                    self._take(json.loads(line))
        except (OSError, ValueError):
            os._exit(3)
        os._exit(0)

    def _take(self, message: Message) -> None:
        if message.get("op") == "give_up":
            self.given_up = message["number"]  # seen in the middle of an evaluation, which reads no commands
        else:
            self.inbox.put(message)

    def send(self, message: Message) -> None:
        """Send a message. A failure ends the process, as the daemon is dead."""
        data = json.dumps(message).encode() + b"\n"
        assert len(data) <= MAX_LINE, len(data)
        try:
            self._socket.sendall(data)
        except OSError:
            os._exit(0)
