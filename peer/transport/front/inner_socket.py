"""The private socket between a front and gRPC.

It is a unix socket in a folder of mode 0700, so that programs of other users cannot bypass the front. On Linux the name
is removed as soon as one side listens, and the other side connects through a file descriptor: paths cannot become too
long, and a killed daemon leaves nothing behind. Other systems cannot connect through a descriptor. There the socket
keeps its name until `close`."""

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
"""Longest path of the folder in bytes. A socket's path has at most 103 on macOS."""
BACKLOG = 16
"""Connections of gRPC's client that may wait: one for each of its channels."""


class InnerSocket:
    """A private unix socket. For gRPC's server: let it listen on `address`, then call `seal`; the front calls
    `connect`. For gRPC's client: the front calls `listen`, and the client connects to `address`. Call `close` at the
    end."""

    def __init__(self, *, nameless: bool = sys.platform == "linux") -> None:
        """`nameless`: whether the socket's name is removed. Raises OSError when there is no temporary folder, no file
        can be opened, or the path is too long for a socket that keeps its name."""
        self._numbers = itertools.count(1)
        self._nameless = nameless
        self._closed = False
        self._removed = False
        self._socket: int | None = None
        self._folder: int | None = None
        self._made = Path(tempfile.mkdtemp(prefix="peer-"))  # mkdtemp creates it with mode 0700
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
        """The address for gRPC to listen on or to connect to."""
        return f"unix:{self._named if self._socket is None else f'/proc/self/fd/{self._socket}'}"

    def listen(self) -> socket.socket:
        """Listen for gRPC, and return the listening socket. Raises OSError."""
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
        """Open a descriptor of the listening socket, and remove its name. Raises OSError."""
        if self._nameless:
            self._socket = os.open(self._named, os.O_PATH | os.O_CLOEXEC)
            self._remove()

    def _remove(self) -> None:
        """Remove the name and the folder, and close the folder's descriptor."""
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
        """Connect to gRPC. Return our end, and its name in gRPC's notation. Raises OSError, and BlockingIOError while
        gRPC's backlog is full."""
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
                path.unlink()  # gRPC reads the name from the connection
            return ours, f"unix:{path}"
        except BaseException:
            ours.close()
            raise

    def close(self) -> None:
        """Remove everything that is left. May be called repeatedly."""
        if self._closed:
            return
        self._closed = True
        self._remove()
        if self._socket is not None:
            os.close(self._socket)
