"""The control socket of a home: a Unix stream socket that only its owner can open. A connection carries one request and
one reply, each a line of JSON.

A request is `{"command": "status"}`, or `leave`, `pause`, `resume`, with further keys that depend on the command. The
reply is the handler's result, or `{"error": code, "reason": sentence}`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peer.errors import HomeBusy, HomeUnusable, NotRunning, PeerError, UsageError, file_advice
from peer.observe.status.codec import to_json
from peer.ports.console import Say
from peer.protocol.policy.amendments import RunPolicy
from peer.rounds.pause import LocalPause
from peer.user_folders import user_name

Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

COMMANDS = frozenset({"status", "leave", "pause", "resume"})
MAX_REQUEST = 64 * 1024
MAX_REPLY = 2**20
MAX_CONNECTIONS = 16
DEADLINE_S = 5.0
"""Seconds from accepting a connection to closing it."""

_MAX_ADDRESS = 100
"""Bytes of a Unix socket address. Systems allow 104 or 108."""


class _Refused(Exception):
    """An invalid request. `code` is stable, the message is for a person."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.reply = {"error": code, "reason": reason}


class ControlServer:
    """Serves the control socket at `path` (mode 0600) with `handler(command, request)`.

    A PeerError of the handler becomes the reply. Any other exception is a defect and is logged."""

    def __init__(self, path: Path, handler: Handler, deadline_s: float = DEADLINE_S) -> None:
        self._path = path
        self._handler = handler
        self._deadline_s = deadline_s
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._closing = False
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the socket. The socket file of a dead process is replaced. Any other file at the path is left alone.

        Raises HomeBusy when a living process answers at the path, HomeUnusable when the socket cannot be made."""
        try:
            _check_vacant(self._path)
            sock, self._inode = _bind(self._path)
        except OSError as error:
            raise HomeUnusable(
                f"cannot make the control socket {self._path}: {error.strerror or error}",
                file_advice(error, self._path),
            ) from error
        self._server = await asyncio.start_unix_server(self._connected, sock=sock, limit=MAX_REQUEST)

    async def close(self) -> None:
        """Stop answering, cancel the requests under way, and remove the socket file if it is still ours."""
        if self._server is None:
            return
        self._closing = True
        self._server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        with contextlib.suppress(FileNotFoundError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:  # the connection was accepted before `close`, and its callback runs after it
            writer.transport.abort()
            return
        if len(self._serving) >= MAX_CONNECTIONS:
            writer.write(_line({"error": "busy", "reason": "too many connections"}))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(lambda done: self._served(done, writer))

    def _served(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()  # not in the task itself: a task cancelled before its first step runs no `finally`
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "the control handler failed", "exception": error})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                writer.write(await self._reply(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError):
            pass  # the client is slow or gone

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            command, request = _parse(await _read_request(reader))
            reply = _line(await self._handler(command, request))
        except _Refused as refused:
            reply = _line(refused.reply)
        except PeerError as error:
            reply = _line({"error": type(error).__name__, "reason": error.found, "fix": error.fix})
        if len(reply) > MAX_REPLY:
            reply = _line({"error": "too_large", "reason": f"the reply would be longer than {MAX_REPLY} bytes"})
        return reply


async def send_command(
    path: Path, command: str, timeout_s: float = DEADLINE_S, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Send a command to the daemon behind the socket at `path`, and return its reply.

    Raises NotRunning when none answers within `timeout_s` seconds, PeerError when the reply is an error."""
    try:
        async with asyncio.timeout(timeout_s):
            reply = _parse_reply(await _converse(path, _line({**(arguments or {}), "command": command})))
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        fix = "Start one with: peer join TICKET. Or name its folder with --home."
        if isinstance(error, PermissionError):
            fix = "Run this command as that user, or name another --home."
        raise NotRunning(_why_not(path, error), fix) from error
    if reply is None:
        raise NotRunning(f"what answers at {path} is no daemon of ours", "Name its folder with --home.")
    return reply


async def _converse(path: Path, request: bytes) -> bytes:
    with _address(path) as address:
        reader, writer = await asyncio.open_unix_connection(address, limit=MAX_REPLY)
    try:
        writer.write(request)
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("its reply is too long") from error
    finally:
        writer.transport.abort()


def _why_not(path: Path, error: Exception) -> str:
    match error:
        case PermissionError():
            return _whose(path)
        case TimeoutError():
            return f"the daemon at {path} does not answer in time"
        case FileNotFoundError() | ConnectionError():
            return f"no daemon answers at {path}"
    return f"no daemon answers at {path}: {error}"


def _whose(path: Path) -> str:
    """Return a sentence that names the owner of the file that this user may not open: the socket, or a folder above
    it."""
    for place in (path, *path.parents):
        try:
            facts = place.lstat()
        except OSError:  # a folder above it cannot be entered
            continue
        if stat.S_ISSOCK(facts.st_mode):
            return f"the daemon at {path} belongs to {user_name(facts.st_uid)}"
        owner, me = user_name(facts.st_uid), user_name(os.geteuid())
        return f"{place} belongs to {owner}, and {me} may not look into it: whether a daemon runs there cannot be seen"
    return f"{path} may not be looked at"


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _Refused("too_large", f"a request is at most {MAX_REQUEST} bytes") from error
    except asyncio.IncompleteReadError as error:
        raise _Refused("bad_request", "a request is one line of JSON") from error


def _parse(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Refused("bad_request", "a request is one line of JSON") from error
    command = request.get("command") if isinstance(request, dict) else None
    if not isinstance(command, str):
        raise _Refused("bad_request", 'a request is an object with a "command"')
    if command not in COMMANDS:
        raise _Refused("unknown_command", f"no command {command[:50]!r}; there are: {', '.join(sorted(COMMANDS))}")
    return command, request


def _parse_reply(line: bytes) -> dict[str, Any] | None:
    """Return the reply, or None for JSON that is no object. Raises ValueError when it is not JSON, PeerError when it is
    an error."""
    try:
        reply = json.loads(line)
    except RecursionError as error:
        raise ValueError("its reply is nested too deeply") from error
    if not isinstance(reply, dict):
        return None
    if "error" in reply:
        raise PeerError(f"the daemon answered: {reply.get('reason', reply['error'])}", str(reply.get("fix", "")))
    return reply


def _line(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode() + b"\n"


def _check_vacant(path: Path) -> None:
    """Raise HomeBusy or OSError unless the path is free or holds the socket of a dead process."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(None, "there is something else of that name")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe, _address(path) as address:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # a process listens there, and its queue is full
    raise HomeBusy(f"another daemon answers at {path}", "Leave it with: peer leave. Or choose another --home.")


def _bind(path: Path) -> tuple[socket.socket, int]:
    """Return a listening socket and its inode. It is made under another name and then renamed, so that the path never
    shows a socket with a wrong mode or one that does not listen."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX)
    try:
        draft.unlink(missing_ok=True)
        with _address(draft) as address:
            sock.bind(address)
        try:
            draft.chmod(0o600)
        except PermissionError:  # a container or file system may refuse it, and the umask may have been enough
            if draft.lstat().st_mode & 0o077:
                raise
        sock.listen(MAX_CONNECTIONS)
        sock.setblocking(False)
        inode = draft.lstat().st_ino
        draft.replace(path)
    except OSError:
        sock.close()
        draft.unlink(missing_ok=True)
        raise
    return sock, inode


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a form of the path that is short enough for a socket address: a long path is addressed through a descriptor
    of its folder."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def pause_or_resume(
    command: str, request: dict[str, Any], rest: LocalPause, policy: RunPolicy, say: Say
) -> dict[str, Any]:
    """Carry out `pause` or `resume`, and return the resulting pauses of the volunteer and of the operator. Raises
    UsageError for an invalid duration."""
    if command == "pause":
        rest.pause(_seconds(request.get("for_s")))
        say(rest.reason())
    else:
        rest.resume()
        say("told to go on")
    return {"paused": to_json(rest.report()), "paused_by_the_operator": policy.paused}


def _seconds(given: Any) -> float | None:
    """Return the duration of a request in seconds. None: none was given. Raises UsageError."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise UsageError("for_s is a number of seconds", "E.g. peer pause --for 2h")
    return float(given)
