"""`DaemonChild`: the daemon process of an attached loop (`peer join --attach`), and the socket to it.

The process is started with `subprocess`, because `multiprocessing` would run the user's script or notebook again, and a
fork would copy its threads and its GPU state. It has a session of its own, so that Ctrl+C in the user's terminal does
not reach it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path

from peer.errors import HomeUnusable, NotRunning, PeerError, file_advice
from peer.python_child import popen_python, without_options
from peer.trainer.ipc import DaemonPipe

OUTPUT = "attached.log"
"""File in the home with the daemon's output. The log of the run is another file."""
MOST_OUTPUT = 2**22
"""Bytes from which on the file is emptied when a daemon is started."""
TAIL_BYTES = 4096
"""Bytes at the file's end that are searched for the last line."""
KILLED_S = 2.0
"""Seconds to wait for the process after SIGKILL."""

_open: weakref.WeakSet[DaemonChild] = weakref.WeakSet()


class DaemonChild:
    """One daemon process. `pipe` exchanges messages with it, and receives `{"op": "ended"}` when its socket closes."""

    def __init__(self, arguments: Sequence[str], home: Path, round_: int) -> None:
        """Start the process. `arguments`: of `peer join`. `home`: has to exist. `round_`: of the live params, see
        `peer.trainer.subprocess.AttachedLoop`.

        Raises HomeUnusable when the process cannot be started."""
        self._output = home / OUTPUT
        ours, theirs = socket.socketpair()
        ours.sendall(json.dumps({"pid": os.getpid(), "round": round_}).encode() + b"\n")
        try:
            with theirs, self._output.open("ab") as output:
                if output.tell() > MOST_OUTPUT:
                    output.truncate(0)
                self._process: subprocess.Popen[bytes] = popen_python(
                    "peer",
                    "join",
                    *arguments,
                    "--attach",
                    str(theirs.fileno()),
                    env=without_options("PEER_KERNELS"),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            found = f"the daemon cannot be started in {home}: {error.strerror or error}"
            raise HomeUnusable(found, file_advice(error, home)) from error
        self.pipe = DaemonPipe(ours, self._ended)
        self.forked = False
        """Whether this process is a fork of the one that started the daemon. The socket is closed then."""
        _open.add(self)

    def _ended(self, code: int) -> None:
        self.pipe.inbox.put({"op": "ended"})

    def leave_to_parent(self) -> None:
        """Close this process's copy of the socket after a fork. The daemon stays with the parent process."""
        self.forked = True
        self.pipe.close_in_child()

    @property
    def pid(self) -> int:
        return self._process.pid

    def drain(self) -> None:
        """Have the daemon leave the run: it finishes the exchange under way, saves and ends."""
        self._signal(signal.SIGTERM)

    def end(self, wait_s: float) -> int:
        """Wait for the process to end and return its exit code. Kill it after `wait_s` seconds."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            code = self._process.wait(KILLED_S)
        self.pipe.close()
        _open.discard(self)
        return code

    def exit_error(self, code: int) -> PeerError:
        """Return the error for a daemon that ended with this exit code without sending an error."""
        fix = f"See {self._output}."
        if code < 0:
            return NotRunning(f"the daemon was killed by {signal.Signals(-code).name}", fix)
        return NotRunning(f"the daemon ended with exit code {code}: {self._last_line() or 'it printed nothing'}", fix)

    def _last_line(self) -> str:
        try:
            with self._output.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def _close_in_forked_child() -> None:
    """Close the sockets in a process that the user's program forked, such as a worker of a DataLoader.

    If such a process outlived the program with an open socket, the daemon would not notice the program's end."""
    for child in list(_open):
        child.leave_to_parent()


os.register_at_fork(after_in_child=_close_in_forked_child)
