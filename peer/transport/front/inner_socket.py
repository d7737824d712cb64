"""The socket on which gRPC listens behind the front, and to which nothing else leads.

It is a unix socket that is bound in a folder of our own and loses its name as soon as gRPC listens: the front goes on
connecting through a descriptor. So no other user's program can call gRPC past the front, no path is too long, and a
daemon that is killed leaves nothing behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import tempfile
from pathlib import Path

from peer.errors import AddressError


class InnerSocket:
    """Give `address` to gRPC, `seal` once it listens, and `close` in the end."""

    def __init__(self) -> None:
        """Raises AddressError when there is no folder for temporary files."""
        self._name = f"peer-{secrets.token_hex(16)}"
        self._numbers = itertools.count(1)
        self._socket: int | None = None
        self._folder: int | None = None
        try:
            self._made = Path(tempfile.mkdtemp(prefix="peer-"))  # of mode 0700
            self._folder = os.open(self._made, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            fix = "Set TMPDIR to a folder where this program may write."
            raise AddressError(f"cannot make a socket for gRPC: {error}", fix) from error
        self._named = Path(f"/proc/self/fd/{self._folder}/{self._name}")

    @property
    def address(self) -> str:
        """Where gRPC is to listen. Short, wherever the folder lies."""
        return f"unix:{self._named}"

    def seal(self) -> None:
        """Keep the socket that gRPC listens at by a descriptor, and take its name away. Raises OSError."""
        self._socket = os.open(self._named, os.O_PATH | os.O_CLOEXEC)
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._named.unlink()
        with contextlib.suppress(FileNotFoundError):
            self._made.rmdir()

    def connect(self) -> tuple[socket.socket, str]:
        """Connect to gRPC; return our end, and how gRPC names it. Raises OSError; BlockingIOError while gRPC has too
        many connections to take."""
        name = f"{self._name}-{next(self._numbers)}"
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.setblocking(False)
            ours.bind(f"\0{name}")
            ours.connect(f"/proc/self/fd/{self._socket}")
        except BaseException:
            ours.close()
            raise
        return ours, f"unix-abstract:{name}"

    def close(self) -> None:
        """Take away what is left."""
        if self._folder is not None:
            self._remove()
            os.close(self._folder)
        if self._socket is not None:
            os.close(self._socket)
        self._folder = self._socket = None
