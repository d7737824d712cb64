"""The socket on which gRPC listens behind the front, and to which nothing else leads.

It is a unix socket in a folder of our own, of mode 0700, so that no other user's program can call gRPC past the front.
On Linux it loses its name as soon as gRPC listens, and the front goes on connecting through a descriptor: no path is
too long, and a daemon that is killed leaves nothing behind. Other systems have no descriptors of that kind. There the
socket keeps its name until `close`."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

from peer.errors import AddressError

LONGEST_FOLDER = 80
"""Bytes of the folder's path. A socket's path has 103 at most on macOS."""


class InnerSocket:
    """Give `address` to gRPC, `seal` once it listens, and `close` in the end."""

    def __init__(self, *, nameless: bool = sys.platform == "linux") -> None:
        """`nameless`: whether the socket loses its name. Raises AddressError when there is no folder for temporary
        files, or when its path is too long for a socket that keeps its name."""
        self._numbers = itertools.count(1)
        self._nameless = nameless
        self._closed = False
        self._socket: int | None = None
        self._folder: int | None = None
        try:
            self._made = Path(tempfile.mkdtemp(prefix="peer-"))  # of mode 0700
            if nameless:
                self._folder = os.open(self._made, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            fix = "Set TMPDIR to a folder where this program may write."
            raise AddressError(f"cannot make a socket for gRPC: {error}", fix) from error
        self._named = (Path(f"/proc/self/fd/{self._folder}") if nameless else self._made) / "grpc"
        if len(bytes(self._made)) > LONGEST_FOLDER and not nameless:
            self.close()
            raise AddressError(f"the path {self._made} is too long for a socket", "Set TMPDIR to a shorter one.")

    @property
    def address(self) -> str:
        """Where gRPC is to listen."""
        return f"unix:{self._named}"

    def seal(self) -> None:
        """Keep the socket that gRPC listens at by a descriptor, and take its name away. Raises OSError."""
        if self._nameless:
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
        number = next(self._numbers)
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.setblocking(False)
            if self._nameless:
                name = f"{self._made.name}-{secrets.token_hex(8)}-{number}"
                ours.bind(f"\0{name}")
                ours.connect(f"/proc/self/fd/{self._socket}")
                return ours, f"unix-abstract:{name}"
            path = self._made / str(number)
            ours.bind(str(path))
            try:
                ours.connect(str(self._named))
            finally:
                path.unlink()  # gRPC still learns it from the connection
            return ours, f"unix:{path}"
        except BaseException:
            ours.close()
            raise

    def close(self) -> None:
        """Take away what is left. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._remove()  # before the descriptor goes by which the folder is named
        for one in (self._folder, self._socket):
            if one is not None:
                os.close(one)
