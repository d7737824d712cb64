"""The socket between a front and gRPC, to which nothing else leads.

It is a unix socket in a folder of our own, of mode 0700, so that no other user's program can call past the front. On
Linux it loses its name as soon as one side listens, and the other side connects through a descriptor: no path is too
long, and a daemon that is killed leaves nothing behind. Other systems have no descriptors of that kind. There the
socket keeps its name until `close`."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

LONGEST_FOLDER = 80
"""Bytes of the folder's path. A socket's path has 103 at most on macOS."""
BACKLOG = 16
"""Connections of gRPC's client that wait: one for each of its channels."""


class InnerSocket:
    """Where gRPC's server listens: give it `address`, `seal` once it listens. Where a front listens for gRPC's client:
    `listen`, and give it `address`. `close` it in the end."""

    def __init__(self, *, nameless: bool = sys.platform == "linux") -> None:
        """`nameless`: whether the socket loses its name. Raises OSError when there is no folder for temporary files, no
        more file may be opened, or the folder's path is too long for a socket that keeps its name."""
        self._numbers = itertools.count(1)
        self._nameless = nameless
        self._closed = False
        self._removed = False
        self._socket: int | None = None
        self._folder: int | None = None
        self._made = Path(tempfile.mkdtemp(prefix="peer-"))  # of mode 0700
        try:
            if nameless:
                self._folder = os.open(self._made, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            elif len(bytes(self._made)) > LONGEST_FOLDER:
                raise OSError(errno.ENAMETOOLONG, "the path is too long for a socket", str(self._made))
        except OSError:
            self._made.rmdir()
            raise
        self._named = (Path(f"/proc/self/fd/{self._folder}") if nameless else self._made) / "grpc"

    @property
    def address(self) -> str:
        """Where gRPC is to listen, or to call what listens."""
        return f"unix:{self._named if self._socket is None else f'/proc/self/fd/{self._socket}'}"

    def listen(self) -> socket.socket:
        """Listen here for gRPC, and return the socket. Raises OSError."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.setblocking(False)
            listening.bind(str(self._named))
            listening.listen(BACKLOG)
            self.seal()
        except BaseException:
            listening.close()
            raise
        return listening

    def seal(self) -> None:
        """Keep the socket at which one side listens by a descriptor, and take its name away. Raises OSError."""
        if self._nameless:
            self._socket = os.open(self._named, os.O_PATH | os.O_CLOEXEC)
            self._remove()

    def _remove(self) -> None:
        """Take the name and the folder away, and the descriptor by which the folder is named."""
        if self._removed:
            return
        self._removed = True
        with contextlib.suppress(FileNotFoundError):
            self._named.unlink()
        with contextlib.suppress(FileNotFoundError):
            self._made.rmdir()
        if self._folder is not None:
            os.close(self._folder)

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
        self._remove()
        if self._socket is not None:
            os.close(self._socket)
