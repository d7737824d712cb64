"""A reader at a terminal: types the commands of one page in order, in a folder and homes of its own.

`peer bootstrap` and `peer join` continue in the background, as in a second terminal. All pages share one tiny swarm. A
page uses it if it starts no daemon, or only daemons that this swarm already has. Commands of `peer` that need no shell
run in this process, which has loaded their libraries already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

from click.testing import CliRunner

import peer.cli.run
import peer.cli.swarm
from peer.cli.main import peer as program
from peer.errors import PeerError
from peer.identity import load_or_create
from peer.node.control import send_command
from peer.run.home import Home
from tests.docs.pages import Command

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE_S = 300.0
"""Time limit of one command in seconds. On a busy machine a swarm of four takes half of it."""
LOOK_S = 0.2
SHORTER = {
    "swarm": {"--minutes": "0.2", "--steps": "40", "--rounds": "2"},
    "compare": {
        "--churn": "60 --steps 200 --seeds 1 --virtual",  # in a run this short no peer would depart at the page's rate
        "--seeds": "2 --steps 40 --virtual",
        "--steps": "40 --virtual",  # real swarms one after another take minutes
    },
    "simulate": {"--churn": "10 --hours 0.1", "--hours": "0.1"},
}
"""Options that bound commands which would take long. The first that the page uses, else the last, is put at the end of
the command, where it overrides the page's own."""
DAEMONS = ("bootstrap", "join")
UNHURRIED = " --speed 0.1"
"""Option of a volunteer's daemon, which trains while its page is read and would slow the other tests down."""
PLAYED_ELSEWHERE = {
    "--attack": "tests/security/strangers/test_lying_donor_swarm.py",
    "--manifest": "tests/integration/test_ticket_is_enough.py",
    "--preset": "tests/integration/test_streaming_swarms.py",
}
"""Options of `peer swarm`, and the test that plays a swarm of real processes with them. Such a command checks its
options and files here, and starts nothing."""
AGREED = " --yes"
"""Answers the question whether to take part, which a reader would confirm at the terminal."""
ASKING = ("status", "pause", "resume", "leave")
SHARED = ("peer manifest new run.toml", "peer bootstrap run.toml", "peer join TICKET")
"""The commands that start the swarm shared by all pages."""
PRELUDES = ("cd", "export", ".", "source")
"""Commands that change the shell itself. They are repeated before every later command."""
_TICKET = re.compile(r"\bpeersw[a-z2-7]{40,}")
_SHELL = re.compile(r"[|<>&;~$*`]")
"""Characters that only a shell interprets."""


@dataclass
class Background:
    """A daemon that a page has started."""

    command: Command
    process: subprocess.Popen[bytes]
    home: Path
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def is_ready(self) -> bool:
        """Whether a bootstrap node has printed its ticket, or a peer trains."""
        if verb_of(self.command.words) == "bootstrap":
            return _TICKET.search(self.output) is not None
        try:
            return bool(
                asyncio.run(send_command(Home(self.home).control_socket, "status", 3.0))["status"] == "training"
            )
        except PeerError:
            return False

    def end(self) -> None:
        """Press Ctrl+C once, and check that it ends well."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        self.check_end()

    def check_end(self) -> None:
        """Wait until it has ended, and check how."""
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"line {self.command.line}: {self.command.text}\nexit code {code}\n{self.output}"


@dataclass
class Terminal:
    """One reader of a page. `shared`: returns the swarm that pages without daemons use; None: this is that swarm
    itself."""

    folder: Path
    shared: Callable[[], Terminal] | None = None
    daemons: list[Background] = field(default_factory=list)
    prelude: list[str] = field(default_factory=list)
    volunteer: Path = field(init=False)
    """Home of the volunteer that the page addresses. It is a separate one when the operator's node uses `home`."""
    others: Terminal | None = None
    """The shared swarm, once a command has used it."""
    typed: list[str] = field(default_factory=list)
    """Every command so far, without comments."""

    def __post_init__(self) -> None:
        self.volunteer = self.home
        for name in ("home", "user", "texts"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / ".venv").symlink_to(BIN.parent)
        (self.folder / "texts" / "a.txt").write_text("A text of one's own, again and again. " * 8000)
        for name in ("argparse", "ast", "bdb", "cmd"):  # documents that differ, as those of a reader do
            shutil.copyfile(Path(os.__file__).with_name(f"{name}.py"), self.folder / "texts" / f"{name}.txt")

    # -- what a page means ---------------------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def ticket(self) -> str:
        """Return the ticket of the page's own bootstrap node, or of the shared one."""
        for daemon in reversed(self.daemons):
            if daemon.running() and (found := _TICKET.search(daemon.output)):
                return found.group()
        return self._swarm().ticket()

    def _swarm(self) -> Terminal:
        assert self.shared is not None, "no bootstrap node runs"
        self.others = self.shared()
        return self.others

    def _filled(self, command: Command) -> str:
        """Replace the page's placeholders by real values."""
        text = command.text
        if re.search(r"\bTICKET\b", text):
            text = re.sub(r"\bTICKET\b", self.ticket(), text)
        if re.search(r"(?<![\w$])HOME\b", text):
            text = re.sub(r"(?<![\w$])HOME\b", str(self._home_meant(command)), text)
        text = re.sub(r"(?<![\w$])FOLDER\b", str(self.folder / "texts"), text)
        text = re.sub(r"\bPEER_ID\b|\b12D3KooW\w*…", load_or_create(self.folder / "other.key").peer_id, text)
        return re.sub(r"\bDIGEST\b|\b[0-9a-f]{8}…", "5e" * 32, text)

    def _home_meant(self, command: Command) -> Path:
        """Choose the folder that HOME stands for: a second home of this page, or the home of the shared peer."""
        second = self.folder / "second-home"
        own = self.shared is None or any(daemon.home.is_relative_to(second) for daemon in self.daemons)
        return second if own or verb_of(command.words) not in ASKING else self._swarm().volunteer

    def _home_of(self, command: Command) -> Path:
        """Choose the home of the daemon that a command starts or calls, or of the key that it signs with."""
        words = shlex.split(self._filled(command), comments=True)
        if "--home" in words:
            return (self.folder / Path(words[words.index("--home") + 1])).resolve()
        if verb_of(words) == "join":
            return self.volunteer
        if verb_of(words) not in ASKING:
            return self.home
        own = self.shared is None or any(one.running() and one.home == self.volunteer for one in self.daemons)
        return self.volunteer if own else self._swarm().volunteer

    def _make_room(self, command: Command) -> Path:
        """Choose the home for a daemon. A running daemon of the same kind there is ended. For one of the other kind,
        operator and volunteer get separate homes."""
        home = self._home_of(command)
        for daemon in self.daemons:
            if daemon.running() and daemon.home == home:
                if verb_of(daemon.command.words) == verb_of(command.words):
                    daemon.end()
                else:
                    home = self.volunteer = self.folder / "volunteer"
        return home

    def _lay_out(self, words: list[str]) -> None:
        """Create the manifest if the command uses `run.toml` and the page has not created it."""
        if "run.toml" in words and words[:3] != ["peer", "manifest", "new"] and not (self.folder / "run.toml").exists():
            made = Command("peer manifest new run.toml", 0)
            self._call(made, made.text, self.home)

    # -- commands ------------------------------------------------------------------------------------------------------

    def run(self, command: Command, later: Sequence[Command] = ()) -> str:
        """Execute a command, check its exit code, and return its output. `later`: the remaining commands of the
        page."""
        words = command.words
        verb = "" if "--help" in words else verb_of(words)
        self._lay_out(words)
        self.typed.append(_without_comment(command.text))
        if verb in DAEMONS:
            if self._is_shared():
                return next(one.output for one in reversed(self._swarm().daemons) if verb_of(one.command.words) == verb)
            if _is_replaced(verb, later):
                return self._read(command)
            return self.start(command)
        if verb == "swarm" and PLAYED_ELSEWHERE.keys() & set(words):
            return self._read(command)
        home, text = self._home_of(command), self._filled(command)
        if verb in SHORTER and _is_plain(words):
            text = f"{_without_comment(text)} {_bound(words, SHORTER[verb])}"
        output = self._call(command, text, home)
        if words[0] in PRELUDES:
            self.prelude.append(text)
        if verb == "leave":
            for daemon in [*self.daemons, *(self.others.daemons if self.others is not None else [])]:
                if daemon.home == home:
                    daemon.check_end()
        return output

    def _is_shared(self) -> bool:
        """Return whether the shared swarm already has the daemon that the command just typed would start."""
        if self.shared is None or self.daemons or self.typed[-1] not in SHARED:
            return False
        return self.typed[-1] == SHARED[-1] or [text for text in self.typed if "run.toml" in text] == [*SHARED[:-1]]

    def _read(self, command: Command) -> str:
        """Have a command that starts daemons check its options and files, without starting any."""
        home = self._make_room(command)
        with (
            patch.object(peer.cli.run, "run_daemon", lambda main: main.close()),
            patch.object(peer.cli.swarm, "_run_and_report", lambda *_: None),
        ):
            more = AGREED if verb_of(command.words) == "join" else ""
            return self._call(command, f"{_without_comment(self._filled(command))}{more}", home)

    def _call(self, command: Command, text: str, home: Path) -> str:
        """Run a plain `peer` command in this process, and any other in a shell."""
        plain = _without_comment(text).replace("\\\n", " ")
        if self.prelude or command.words[0] != "peer" or _SHELL.search(plain) or not plain.startswith("peer "):
            return self._in_shell(command, text, home)
        with patch.dict(os.environ, self._env(home), clear=True), contextlib.chdir(self.folder):
            try:
                done = CliRunner().invoke(program, shlex.split(plain)[1:], catch_exceptions=False)
            except PeerError as error:
                found = f"line {command.line}: {text}\nexit code {error.exit_code}\n{error}"
                raise AssertionError(found) from error
        assert done.exit_code == 0, f"line {command.line}: {text}\nexit code {done.exit_code}\n{done.output}"
        return done.output

    def _in_shell(self, command: Command, text: str, home: Path) -> str:
        log = self.folder / "command.log"
        with log.open("wb") as file:
            process = self._spawn(["set -e", *self.prelude, text], home, file)
            try:
                code = process.wait(PATIENCE_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)  # the program that the shell has started is in its session
                    process.wait()
        said = log.read_text(errors="replace")
        assert code == 0, f"line {command.line}: {text}\nexit code {code}\n{said}"
        return said

    def _spawn(self, lines: list[str], home: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
        """Start a shell with these lines in a session of its own."""
        return subprocess.Popen(
            ["bash", "-c", "\n".join(lines)],
            cwd=self.folder,
            env=self._env(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def _env(self, home: Path) -> dict[str, str]:
        plain = {"NO_COLOR": "1", "COLUMNS": "200", "HOME": str(self.folder / "user"), "PEER_PORT_MAPPING": "no"}
        kept = {name: value for name, value in os.environ.items() if name not in ("PEER_CONFIG", "XDG_CONFIG_HOME")}
        return {**kept, **plain, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PEER_HOME": str(home)}

    def start(self, command: Command) -> str:
        """Start a daemon, wait until it is ready, and return its output so far."""
        home = self._make_room(command)
        log = self.folder / f"daemon-{len(self.daemons)}.log"
        more = ""
        if verb_of(command.words) == "join":
            more = AGREED if "--speed" in command.words else AGREED + UNHURRIED
        text = f"exec env {_without_comment(self._filled(command))}{more}"
        with log.open("wb") as file:
            process = self._spawn([*self.prelude, text], home, file)
        daemon = Background(command, process, home, log)
        self.daemons.append(daemon)
        deadline = time.monotonic() + PATIENCE_S
        while not daemon.is_ready():
            assert daemon.running(), f"{command.text}\nexit code {process.returncode}\n{daemon.output}"
            assert time.monotonic() < deadline, f"{command.text} is not ready:\n{daemon.output}"
            with contextlib.suppress(subprocess.TimeoutExpired):  # it ends early only when it fails
                process.wait(LOOK_S)
        return daemon.output

    def close(self) -> None:
        """End every daemon with Ctrl+C, the bootstrap node last."""
        try:
            for daemon in sorted(self.daemons, key=lambda daemon: verb_of(daemon.command.words) == "bootstrap"):
                daemon.end()
        finally:
            for daemon in self.daemons:
                if daemon.running():
                    daemon.process.kill()
                    daemon.process.wait()


def verb_of(words: list[str]) -> str:
    """Return the command of `peer` that these words call. Empty: another program."""
    return words[1] if words[:1] == ["peer"] and len(words) > 1 else ""


def _is_replaced(verb: str, later: Sequence[Command]) -> bool:
    """Return whether the page starts a daemon of this kind again before any command that would need the first one."""
    for command in later:
        words = command.words
        if (now := verb_of(words)) == verb:
            return "--home" not in words
        if now in (*DAEMONS, *ASKING) or "TICKET" in command.text or words[0] == "curl":
            return False
    return False


def _bound(words: list[str], options: dict[str, str]) -> str:
    """Return the options that make a command short. The swarm is reduced to two peers, except with options that refer
    to single peers."""
    name = next((name for name in options if name in words), list(options)[-1])
    swarms = {"swarm", "compare"} & set(words)
    few = " --peers 2" if swarms and not {"--kill", "--join", "--throttle"} & set(words) else ""
    return f"{name} {options[name]}{few}"


def _without_comment(text: str) -> str:
    return re.sub(r"\s+#\s.*$", "", text)


def _is_plain(words: list[str]) -> bool:
    """Return whether a command has no subcommand (such as `peer simulate latency`) and is not piped (such as `|
    jq`)."""
    alone = len(words) == 2 or words[2].startswith("-") or words[1] == "compare"
    return alone and not {"|", ">", "&&", ";"} & set(words)
