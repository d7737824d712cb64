"""The processes of a local swarm. They are started without a shell, and never killed as a process group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from peer.errors import PeerError, SwarmFailed
from peer.node.control import send_command
from peer.observe.status.notices import read_status
from peer.python_child import start_python, without_options
from peer.run.home import Home
from peer.user_folders import make_private

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
ANYWHERE = ("--host-maddrs", LOOPBACK)
QUIET = {"PEER_PORT_MAPPING": "no"}
"""Environment of every process: no port mapping, because a swarm on one machine needs no ports of a router."""
STARTUP_S = 120.0
LISTEN_EVERY_S = 1.0
"""Seconds between two status requests to a leaving daemon, for the time that it announces."""
PATIENCE = 2.0
"""A leaving daemon may take this many times the seconds that it announced."""


@dataclass
class Daemon:
    """One `peer` process with its home and log. Restarted with the same home, it is the same peer."""

    name: str
    home: Path
    process: asyncio.subprocess.Process | None = None
    killed: bool = False
    started_at: float = 0.0
    exit_codes: list[int] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.home / "daemon.log"

    async def start(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("peer",),
    ) -> None:
        """Start `python -m peer …` with its output appended to the log. prefix: a program to run it under, which must
        replace itself by it (exec). program: another module than `peer`, with its own arguments.

        The process has a session of its own, so that Ctrl+C in our terminal does not reach it; we end it ourselves. If
        we die first, its standard input ends, and it leaves."""
        make_private(self.home)
        self.started_at, self.killed = time.time(), False
        with _open_private(self.log) as log:
            self.process = await start_python(
                *program,
                *arguments,
                "--home",
                str(self.home),
                "--leave-on-eof",
                prefix=prefix,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**without_options(), **QUIET, **(env or {})},
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def wait(self) -> int:
        assert self.process is not None
        code = await self.process.wait()
        self.exit_codes.append(code)
        return code

    def kill(self) -> None:
        """Send SIGKILL to the daemon alone. Its trainer and DHT helper have to notice that by themselves."""
        if self.running and self.process is not None:
            self.killed = True
            self.process.kill()

    async def stop(self, grace_s: float) -> None:
        """Ask the daemon to leave, and kill it after `grace_s` seconds, or after PATIENCE times the seconds that it
        announces if that is longer. Never raises."""
        if not self.running or self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        ended, began, announced_s = asyncio.ensure_future(self.process.wait()), time.monotonic(), 0.0
        while (left_s := began + max(grace_s, PATIENCE * announced_s) - time.monotonic()) > 0:
            if (await asyncio.wait({ended}, timeout=min(LISTEN_EVERY_S, left_s)))[0]:
                return
            announced_s = announced_s or announced_leave_s(await self.status())
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await ended

    async def status(self) -> dict[str, Any] | None:
        """Return its status as `peer status --json` prints it. None: it does not answer."""
        if not self.running:
            return None
        try:
            return await send_command(Home(self.home).control_socket, "status", 3.0)
        except PeerError:
            return None

    def log_tail(self) -> str:
        """Return the last lines of its log. Empty: it has none."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-8:])


def announced_leave_s(report: dict[str, Any] | None) -> float:
    """Return the seconds that a leaving daemon announces in its status. 0: none."""
    leaving = None if report is None else read_status(report).leaving
    return 0.0 if leaving is None else leaving.announced_s


async def start_bootstrap(
    daemon: Daemon,
    manifest: Path,
    min_peers: int,
    state: Path | None = None,
    where: tuple[str, ...] = ANYWHERE,
    data: Path | None = None,
    more: tuple[str, ...] = (),
    program: tuple[str, ...] = ("peer",),
    prefix: tuple[str, ...] = (),
) -> str:
    """Start the bootstrap node and return its ticket. `where`: options with its addresses. `data`: folder of token
    shards. `more`: further options of `peer bootstrap`. Raises SwarmFailed with the end of its log if it does not
    start."""
    ticket = daemon.home / "ticket"
    make_private(daemon.home)
    ticket.unlink(missing_ok=True)
    await daemon.start(
        "bootstrap",
        str(manifest),
        *where,
        "--ticket-file",
        str(ticket),
        "--min-peers",
        str(min_peers),
        "--no-check",  # the peers evaluate already, and all processes share this machine
        *(("--state", str(state)) if state else ()),
        *(("--data", str(data)) if data else ()),
        *more,
        program=program,
        prefix=prefix,
    )
    deadline = time.monotonic() + STARTUP_S
    while not ticket.exists():
        if not daemon.running or time.monotonic() > deadline:
            raise SwarmFailed(f"the bootstrap node did not start:\n{daemon.log_tail()}", f"Its log: {daemon.log}")
        await asyncio.sleep(0.1)
    return ticket.read_text().strip()


async def start_peer(
    daemon: Daemon,
    ticket: str,
    *,
    threads: int,
    speed: float,
    min_peers: int,
    more: tuple[str, ...] = (),
    where: tuple[str, ...] = ANYWHERE,
    program: tuple[str, ...] = ("peer",),
    prefix: tuple[str, ...] = (),
) -> None:
    """Start a peer of the swarm on loopback. `more`: further options of `peer join`. `where`: options with its
    addresses. `speed`: share of the time in which its trainer works."""
    await daemon.start(
        "join",
        ticket,
        *where,
        "--threads",
        str(threads),
        "--speed",
        repr(speed),
        "--min-peers",
        str(min_peers),
        "--checkpoint-every",
        "15",
        "--priority",
        "normal",  # all processes of the swarm get the same priority, so that measurements are fair
        "--yes",
        *more,
        env={"OMP_NUM_THREADS": str(threads)},
        program=program,
        prefix=prefix,
    )


def _open_private(log: Path) -> BinaryIO:
    """Open a file for appending. If it is created, only its owner may read it, whatever the umask."""
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")
