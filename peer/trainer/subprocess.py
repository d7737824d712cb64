"""The daemon's end of one trainer process: its socket, the calls over it, and the cause of its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from peer.errors import (
    DataError,
    HomeUnusable,
    MachineTooSmall,
    ManifestError,
    ModelError,
    PeerError,
    StateError,
    TrainerDied,
    UsageError,
)
from peer.python_child import start_python
from peer.trainer.ipc import MAX_LINE, Message

LOG = "trainer.log"
"""File with the output of the process started last."""
EXIT_S, KILLED_S = 1.0, 0.5
"""Seconds until the process is killed once its socket is closed, and seconds to wait after the kill."""
LOG_TAIL_BYTES = 4096
"""Bytes at the log's end that are searched for the last line."""
HELLO_S = 10.0
"""Seconds to wait for an attached program's first line. The program writes it before it starts the daemon."""

UNSOLICITED = frozenset({"progress", "logged", "note", "shards", "skipped"})
"""Keys that mark a message as a report, which answers no call."""

_MENDABLE = (DataError, HomeUnusable, MachineTooSmall, ManifestError, ModelError, StateError, UsageError)
REFUSALS: dict[str, type[PeerError]] = {kind.__name__: kind for kind in _MENDABLE}


class _Process(Protocol):
    """The part of `asyncio.subprocess.Process` that `TrainerSubprocess` uses."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _AttachedProgram:
    """The user's program that started this daemon. It is no child of ours, so only its socket shows its end."""

    pid: int

    async def wait(self) -> int:
        return 0

    def kill(self) -> None:
        """Do nothing: a daemon never ends the user's program."""


@dataclass(frozen=True, slots=True)
class AttachedLoop:
    """State of a user's own training loop at the moment at which it attaches."""

    round: int
    """Round of its live params. -1: its params are not of this run yet."""

    @property
    def live(self) -> bool:
        """Whether its params hold work of the run, which the daemon must not overwrite."""
        return self.round >= 0


class TrainerSubprocess:
    """A trainer process: one that `spawn` starts and `begin` configures, or a user's program, connected by `adopt`.

    The owner has to await `end`."""

    def __init__(
        self,
        process: _Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log: Path | None,
        attached: AttachedLoop | None = None,
    ) -> None:
        """`log`: file of the process's output. None: a user's program, whose output is its own."""
        self.attached = attached
        """The user's training loop. None: the process runs the built-in loop."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._log = log
        self._on_progress: Callable[[Message], None] = lambda message: None
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._last_id = 0
        self._crash_message = ""
        self._refusal: Message | None = None
        self._ending = False
        self._cause = ""
        self._last_message_at = 0.0
        self._watching = asyncio.create_task(self._watch(), name="trainer-line")

    @classmethod
    async def spawn(cls, log: Path, threads: int) -> TrainerSubprocess:
        """Start a fresh interpreter, which loads torch and then waits for `begin`.

        `log`: file for its output, overwritten. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, log.open("wb") as output:
                process = await start_python(
                    "peer.trainer",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    env=_environment(threads),
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
        except BaseException:
            ours.close()  # if the process has started, it ends when its socket closes
            raise
        return cls(process, reader, writer, log)

    @classmethod
    async def adopt(cls, descriptor: int) -> TrainerSubprocess:
        """Connect to a user's program over an inherited socket.

        Raises OSError, TimeoutError when no first line arrives within `HELLO_S`, and ValueError or KeyError when that
        line is no hello of an attached loop."""
        reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor), limit=MAX_LINE)
        try:
            async with asyncio.timeout(HELLO_S):
                hello = json.loads(await reader.readline())
            attached = AttachedLoop(round=int(hello["round"]))
            return cls(_AttachedProgram(int(hello["pid"])), reader, writer, None, attached)
        except BaseException:
            writer.close()
            raise

    def begin(self, opening: Message, on_progress: Callable[[Message], None], log: Path) -> None:
        """Configure the process with `opening`, and rename its log to `log`. Raises OSError when that fails.

        `on_progress` is called with each report (`UNSOLICITED`)."""
        self._log = None if self._log is None else self._log.replace(log)
        self._on_progress = on_progress
        self._write(opening)

    @property
    def alive(self) -> bool:
        return not self._cause

    @property
    def crashed(self) -> bool:
        """Whether the process ended without a typed refusal, so that a new process may succeed."""
        return not self.alive and self._refusal is None

    @property
    def pid(self) -> int:
        return self._process.pid

    # -- calls -------------------------------------------------------------------------------------------------------

    def post(self, op: str, **fields: Any) -> None:
        """Send a command that has no reply."""
        self._write({"op": op, **fields})

    async def call(self, op: str, *, silence_s: float | None = None, **fields: Any) -> Message:
        """Send a command and return its reply.

        Raises TrainerDied when the process is gone or ends, the PeerError that it ended with, or OSError when the
        command failed. With `silence_s`, also raises TrainerDied when no message of any kind arrives for that many
        seconds."""
        if self._cause:
            raise self._death()
        self._last_id += 1
        call_id = self._last_id
        future = self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._write({"id": call_id, "op": op, **fields})
        self._last_message_at = asyncio.get_running_loop().time()
        try:
            if silence_s is not None:
                await self._await_while_active(future, silence_s)
            answer: Message = await future
            return answer
        finally:
            self._calls.pop(call_id, None)

    async def _await_while_active(self, future: asyncio.Future[Message], silence_s: float) -> None:
        now = asyncio.get_running_loop().time
        while not future.done():
            left = self._last_message_at + silence_s - now()
            if left <= 0:
                raise TrainerDied(f"silent for {silence_s:.0f} s while starting")
            await asyncio.wait({future}, timeout=left)

    def _write(self, message: Message) -> None:
        data = json.dumps(message).encode() + b"\n"
        assert len(data) <= MAX_LINE, len(data)
        if not self._writer.is_closing():  # uvloop raises there; `_watch` notices the end
            self._writer.write(data)

    # -- incoming messages, and the end of the process ---------------------------------------------------------------

    async def _watch(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a broken or overlong line counts as the end
            while line := await self._reader.readline():
                self._last_message_at = asyncio.get_running_loop().time()
                self._receive(json.loads(line))
        code = await self._reap()
        self._ended(self._cause_of(code))

    def _receive(self, message: Message) -> None:
        if not UNSOLICITED.isdisjoint(message):
            self._on_progress(message)
        elif "dying" in message:
            self._crash_message = message["dying"]
        elif "refused" in message:
            self._refusal = message
        future = self._calls.get(message.get("id", 0))
        if future is None or future.done():
            return
        if "failed" in message:
            future.set_exception(OSError(message["failed"]))
        else:
            future.set_result(message["ok"])

    async def _reap(self) -> int:
        """Return the exit code. A process that lives on after its socket closed is of no use, and is killed."""
        try:
            async with asyncio.timeout(EXIT_S):
                return await self._process.wait()
        except TimeoutError:
            self._signal(self._process.kill)
            return await self._process.wait()

    def _ended(self, cause: str) -> None:
        self._cause = self._cause or cause
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self._death())

    def _death(self) -> Exception:
        refusal = self._refusal
        if refusal is not None and refusal["refused"] in REFUSALS and not self._ending:
            return REFUSALS[refusal["refused"]](refusal["found"], refusal["fix"], refusal["why"])
        return TrainerDied(self._cause)

    def _cause_of(self, code: int) -> str:
        if self._ending:
            return "stopped"
        if self._refusal is not None:
            return str(self._refusal["found"])
        if self._crash_message:
            return self._crash_message
        if self._log is None:
            return "the program with the training loop ended"
        if code == -signal.SIGKILL:
            return "killed by SIGKILL (out of memory?)"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}: {_last_line(self._log) or 'it printed nothing'}"

    async def wait_ended(self) -> None:
        """Wait until the process has ended or its socket is closed."""
        await asyncio.wait({self._watching})

    async def end(self) -> None:
        """End the process within two seconds: close its socket, then kill it. Never raises; may be called again."""
        self._ending = True
        self._writer.close()  # the process ends when its socket closes
        for wait_s, escalate in (
            (EXIT_S, self._process.kill),
            (KILLED_S, self._watching.cancel),
        ):
            await asyncio.wait({self._watching}, timeout=wait_s)
            if self._watching.done():
                break
            self._signal(escalate)
        self._ended("stopped")

    @staticmethod
    def _signal(send: Callable[[], object]) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process is gone
            send()


def _environment(threads: int) -> dict[str, str]:
    """Return this process's environment with the number of threads, and with spinning of OpenMP turned off.

    Threads that spin while they wait would slow down the other programs of the volunteer's machine."""
    return os.environ | {
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
    }


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
