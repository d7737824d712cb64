"""`peer service` with a real systemd of a user, in namespaces of its own: python -m benchmarks.user_service

A peer is installed as a service beside a bootstrap node and another peer. Its daemon gets SIGHUP, is killed, and at
last the service manager ends as at a log-out. Linux with systemd and a unified control group hierarchy, as root. It
touches neither the machine's own systemd nor anybody's home.

Bounds: every check passes, a drain takes at most 30 s, and after a kill the next process begins within 40 s. Two
minutes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, options, parsed, publish
from peer.python_child import popen_python, python_command, python_environment, run_python

ABOUT = Benchmark(
    "user_service",
    "Does a service of a user's systemd train, drain and come back?",
    "9: leaving is clean within seconds, at a closed terminal and at a log-out too",
    smallest="",
    needs=("root", "systemd-run", "unshare"),
    is_long=True,
)
GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
PATIENCE_S = 120.0
SETTINGS = ("total_rounds=100000", "sync_every=4")
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
RESTARTED_AT_MOST_S = 40.0
DRAINED_AT_MOST_S = 30.0


def measured(folder: Path) -> dict[str, Any]:
    """Run the benchmark inside the namespaces. Return seconds of each action, and errors."""
    wrong: list[str] = []
    with _manager(folder) as manager, _others(folder):
        service = _Service(folder)
        seconds = {"from install to the first exchange": service.installed()}
        seconds["drain after SIGHUP"] = service.ended(lambda: os.kill(service.pid(), signal.SIGHUP))
        if (code := service.last("left").get("exit_code")) != 0:
            wrong.append(f"after SIGHUP the journal ends with exit code {code}")
        if service.fact("NRestarts") != "0":
            wrong.append("after SIGHUP it was started again")
        seconds["from kill -9 to the next process"] = service.killed()
        seconds["drain at log-out"] = service.ended(lambda: _systemctl("exit"), manager)
        if service.last("left").get("exit_code") != 0:
            wrong.append("at log-out it did not drain")
    return {"seconds": seconds, "wrong": wrong}


class _Service:
    """The installed peer."""

    def __init__(self, folder: Path) -> None:
        self._ticket = folder / "ticket"
        self._home = Path(os.environ["XDG_DATA_HOME"]) / "peer"

    def installed(self) -> float:
        for key, value in (("threads", "1"), ("host-maddrs", LOOPBACK), ("port-mapping", "false")):
            _peer("config", "set", f"join.{key}", value)
        began = time.monotonic()
        print(_peer("service", "install", f"@{self._ticket}", "--yes"), flush=True)
        _until(lambda: self.exchanges() > 0, "an exchange")
        seconds = time.monotonic() - began
        print(_peer("service", "status"))
        return seconds

    def ended(self, end: Callable[[], object], manager: subprocess.Popen[bytes] | None = None) -> float:
        pid, began = self.pid(), time.monotonic()
        end()
        _until(lambda: not Path(f"/proc/{pid}").exists(), "the daemon's end")
        seconds = time.monotonic() - began
        if manager is not None:
            manager.wait(PATIENCE_S)
        return seconds

    def killed(self) -> float:
        """Restart the peer, wait until it trains, kill it, and wait until the next process trains. Return the
        seconds."""
        before = self.exchanges()
        _systemctl("start", "peer.service")
        _until(lambda: self.exchanges() > before, "an exchange after a start")
        pid, began = self.pid(), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        _until(lambda: self.pid() not in (0, pid), "another process")
        seconds, before = time.monotonic() - began, self.exchanges()
        _until(lambda: self.exchanges() > before, "an exchange after a kill")
        return seconds

    def fact(self, name: str) -> str:
        return _systemctl("show", "peer.service", f"--property={name}", "--value").strip()

    def pid(self) -> int:
        return int(self.fact("MainPID"))

    def last(self, kind: str) -> dict[str, Any]:
        """Return the last event of a kind. Empty: there is none."""
        found = [event for event in self._events() if event["kind"] == kind]
        return found[-1] if found else {}

    def exchanges(self) -> int:
        return sum(event.get("outcome") == "exchanged" for event in self._events())

    def _events(self) -> Iterator[dict[str, Any]]:
        for journal in self._home.glob("runs/*/journal.jsonl"):
            for line in journal.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the line is still being written
                    yield json.loads(line)


@contextlib.contextmanager
def _manager(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a user's systemd, which believes that systemd booted this machine."""
    runtime = Path("/run/user/0")
    for command in (["mount", "-t", "tmpfs", "tmpfs", "/run"], ["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"]):
        subprocess.run(command, check=True)
    Path("/run/systemd/system").mkdir(parents=True)
    runtime.mkdir(parents=True, mode=0o700)
    home = folder / "user"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith(("PEER_", "DBUS_"))]:
        del os.environ[name]
    os.environ |= {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / "data"),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    with (folder / "systemd.log").open("wb") as log:
        manager = subprocess.Popen(["/lib/systemd/systemd", "--user"], stdout=log, stderr=log)
    _until(lambda: (runtime / "systemd" / "private").exists(), "systemd's socket")
    _systemctl("set-environment", f"PYTHONPATH={os.environ['PYTHONPATH']}")
    try:
        yield manager
    finally:
        manager.terminate()
        manager.wait(PATIENCE_S)


@contextlib.contextmanager
def _others(folder: Path) -> Iterator[None]:
    """Run a bootstrap node, whose ticket is in a file, and another peer."""
    manifest, ticket = folder / "run.toml", folder / "ticket"
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    _peer("manifest", "new", str(manifest), "--home", str(folder / "node"), *settings)
    plain = ("--host-maddrs", LOOPBACK, "--no-port-mapping")
    with contextlib.ExitStack() as stack:
        node = ("bootstrap", str(manifest), "--home", str(folder / "node"), "--ticket-file", str(ticket))
        stack.enter_context(_daemon(folder / "node.log", *node, *plain))
        _until(lambda: ticket.exists() and ticket.stat().st_size > 0, "a ticket")
        other = ("join", f"@{ticket}", "--home", str(folder / "other"), "--threads", "1", "--yes")
        stack.enter_context(_daemon(folder / "other.log", *other, *plain))
        yield


@contextlib.contextmanager
def _daemon(log: Path, *arguments: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = popen_python("peer", *arguments, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _peer(*arguments: str) -> str:
    done = run_python("peer", *arguments, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return str(done.stdout)


def _systemctl(*arguments: str) -> str:
    command = ["systemctl", "--user", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.1)


def _in_namespaces(folder: Path) -> dict[str, Any]:
    """Run this program again in namespaces and a control group of its own. Return its measurements."""
    root = next(group for group in reversed(GROUPS) if (group / "cgroup.procs").exists())
    group = root / f"peer-service-{os.getpid()}"
    group.mkdir()
    inside = python_command("benchmarks.user_service", "--inside", str(folder))
    unshared = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--cgroup", "--ipc", "--kill-child", *inside]
    try:
        subprocess.run(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *unshared],
            check=True,
            env=python_environment("benchmarks.user_service"),
        )
    finally:
        for below in sorted(group.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):  # one of its processes is still ending
                below.rmdir()
    report: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return report


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--inside", type=Path, metavar="FOLDER", help="within the namespaces already")
    arguments = parsed(parser, ABOUT)
    if arguments.inside is not None:
        (arguments.inside / "measured.json").write_text(json.dumps(measured(arguments.inside)))
        return 0
    with tempfile.TemporaryDirectory(prefix="user-service-") as folder:
        report = _in_namespaces(Path(folder))
    print("\n".join(report["wrong"]))
    bounds = {
        "drain after SIGHUP": DRAINED_AT_MOST_S,
        "drain at log-out": DRAINED_AT_MOST_S,
        "from kill -9 to the next process": RESTARTED_AT_MOST_S,
    }
    figures = [Figure("things wrong", "", len(report["wrong"]), 0)]
    figures += [Figure(what, "s", seconds, bounds.get(what)) for what, seconds in report["seconds"].items()]
    return 0 if publish(arguments, ABOUT, figures) else 1


if __name__ == "__main__":
    sys.exit(main())
