"""The programs of several checkouts as daemons: each under a home that another checkout's program may take over.

Only the command line and the files of a home are used, so a checkout may call its modules what it likes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen, SubprocessError, TimeoutExpired, run
from typing import Any

SETTINGS = ["sync.clock=steps", "sync.sync_every=20", "train.batch=2", "train.eval_every=10", "train.eval_windows=16"]
CALL_S, GRACE_S = 60.0, 15.0
"""A command may take so long, and a daemon to leave."""
PLACE = ("--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--leave-on-eof")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PEER_", "PYTHON"))}
"""It points no process at another home or at the other side's code."""
ENVIRONMENT["OMP_NUM_THREADS"] = "1"
Row = dict[str, Any]


class Failed(Exception):
    """A command or a swarm did not do what everything after it needs."""


def called(*command: str) -> str:
    """Run a command and return its output. Raises Failed with its last lines."""
    options: Row = {"capture_output": True, "text": True, "timeout": CALL_S, "env": ENVIRONMENT, "cwd": "/"}
    try:
        return str(run(command, check=True, **options).stdout.strip())
    except (OSError, SubprocessError) as error:
        raise Failed(f"{error} {str(getattr(error, 'stderr', ''))[-800:]}") from error


@dataclass(frozen=True)
class Side:
    """One checkout and the program in it. A plus after the commit tells that tracked files differ from it."""

    name: str
    program: str
    commit: str

    @classmethod
    def of(cls, name: str, root: Path) -> Side:
        """The checkout in this folder. Raises Failed for one whose program is not its own code."""
        root = root.resolve()
        where = called(f"{root}/.venv/bin/python", "-P", "-c", "import peer; print(peer.__file__)")
        if not Path(where).is_relative_to(root):
            raise Failed(f"{root}/.venv runs {where}, not the code of {root}")
        changed = called("git", "-C", str(root), "status", "--porcelain", "-uno")
        commit = called("git", "-C", str(root), "rev-parse", "HEAD") + "+" * bool(changed)
        return cls(name, f"{root}/.venv/bin/peer", commit)


@dataclass
class Node:
    """One daemon: a side's program under a home. The other side may take the home over later."""

    name: str
    side: Side
    home: Path
    process: Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """The daemon begins in a session of its own, and leaves when we are gone and its standard input ends."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = [self.side.program, *arguments, *PLACE, "--home", str(self.home)]
        with (self.home / "daemon.log").open("ab") as log:
            self.process = Popen(
                command, stdin=PIPE, stdout=log, stderr=log, cwd=self.home, env=ENVIRONMENT, start_new_session=True
            )

    @property
    def code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return None if self.process is None else self.process.poll()

    def end(self) -> None:
        """The daemon, told to leave before, ends; it is killed when that takes too long."""
        if self.process is not None:
            try:
                self.process.wait(GRACE_S)
            except TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def manifest(self, name: str, preset: str, settings: Sequence[str]) -> Row:
        """The description of a manifest that the node's side writes and signs next to the node's home."""
        program, file = self.side.program, str(self.home.parent / name)
        given = [f"--set={setting}" for setting in (*SETTINGS, *settings)]
        called(program, "manifest", "new", file, "--home", str(self.home), "--preset", preset, *given)
        return dict(json.loads(called(program, "manifest", "show", file, "--json")))

    def events(self, *kinds: str) -> list[Row]:
        """The journal's events so far, of these kinds; a line that is just being written is left out."""
        found: list[Row] = []
        for path in self.home.glob("runs/*/journal.jsonl"):
            for line in path.read_bytes().split(b"\n"):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return [event for event in found if not kinds or event["kind"] in kinds]

    @property
    def peer_id(self) -> str:
        return "".join(event["peer_id"] for event in self.events("started")[:1])
