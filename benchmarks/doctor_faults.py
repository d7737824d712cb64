"""Does `peer doctor` name what is wrong, and how to mend it? Linux, as root.

Bounds: in every case the finding, its fix and the exit code are the right ones, and the home is left as it was.

    sudo python -m benchmarks.doctor_faults [CASE …] [--json FILE] [--results]

A bootstrap node and a peer train in namespaces of their own. `peer doctor` runs at a third place, once for each case,
against a machine that is really broken in that way. It takes `tc`, `setpriv` and `nsenter`. About 8 minutes on two
cores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.nat_network import home_site, inside, internet, open_site, run
from benchmarks.nat_swarm import DHT_PORT, PORT, NatSwarm, Run, dialled_at
from benchmarks.result import ROOT, Benchmark, Figure, Table, options, parsed, publish
from peer.errors import NotReady
from peer.identity import Identity
from peer.python_child import popen_python, python_command
from peer.run.ticket import Ticket

ABOUT = Benchmark(
    "doctor_faults",
    "Does peer doctor name what is wrong with a machine, and how to mend it?",
    "10 (every fault has a reason that a person can read)",
    smallest="healthy",
    needs=("namespaces", "tc", "setpriv", "nsenter"),
    is_long=True,
)
HOME = "192.168.7.2"
NOBODY = 65534
SMALL_DISK, LITTLE_MEMORY = 4 * 2**20, 800 * 2**20
"""Sizes in bytes of the small disk and of the control group's memory."""
SLOW = "128kbit"
WRONG_S = 300.0
DOCTOR_S = 300.0
ROUND_S, ROUNDS = 20.0, 10**4
MODEL = ("model.hidden_size=128", "model.intermediate_size=256")
"""A model whose payload of 0.7 MB takes longer over the slow line than an exchange may."""
CGROUP = Path("/sys/fs/cgroup/memory")
NO_CHECKOUT = """\
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
"""
"""Program text that hides editable installs, so that no checkout provides the missing files."""
NEVER, TAKES_PART = "error", "warning"


@dataclass
class Place:
    """The place where `peer doctor` runs. The command is `prefix python -m program doctor TICKET options`."""

    folder: Path
    namespace: str
    ticket: str
    home: Path = Path()
    prefix: list[str] = field(default_factory=list)
    program: list[str] = field(default_factory=lambda: ["peer"])
    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Return the command line."""
        # nsenter keeps /sys, and with it the mounted control groups
        where = ["nsenter", f"--net=/run/netns/{self.namespace}", *self.prefix]
        what = ["doctor", self.ticket, "--json", "--home", str(self.home), "--threads", "1", *self.options]
        return [*where, *python_command(*self.program, *what)]


Break = Callable[[Place], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Case:
    """A broken machine. The report must have a finding `what` of this severity that contains these words."""

    what: str
    severity: str
    measured: str
    fix: str
    broken: Break
    closed: bool = False
    """Whether the machine is behind a router that lets nothing in."""
    beside: bool = False
    """Whether the home is that of the training peer."""


@contextlib.contextmanager
def nothing(place: Place) -> Iterator[None]:
    yield


@contextlib.contextmanager
def taken_port(place: Place) -> Iterator[None]:
    """Occupy the port that the user chooses."""
    import socket

    place.options += ["--port", str(PORT)]
    with inside(place.namespace), socket.create_server(("0.0.0.0", PORT)):
        yield


def wrong_clock(off_s: float) -> Break:
    @contextlib.contextmanager
    def broken(place: Place) -> Iterator[None]:
        file = place.folder / "skew"
        file.write_text(repr(off_s))
        place.program = ["peer.lab.localswarm.skewed_clock", str(file)]
        yield

    return broken


@contextlib.contextmanager
def full_disk(place: Place) -> Iterator[None]:
    """Put the home on a full disk."""
    disk = place.folder / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(disk))
    try:
        (disk / "photos").write_bytes(bytes(SMALL_DISK - 2**20))
        place.home = disk / "home"
        yield
    finally:
        run("umount", str(disk))


@contextlib.contextmanager
def little_memory(place: Place) -> Iterator[None]:
    """Run in a control group with too little memory."""
    group = CGROUP / f"peer-doctor-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LITTLE_MEMORY))
        enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        place.prefix = ["sh", "-c", enter, "sh"]
        yield
    finally:
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        group.rmdir()


@contextlib.contextmanager
def dead_ticket(place: Place) -> Iterator[None]:
    """Use a ticket whose bootstrap node does not listen."""
    known = Ticket.named(place.ticket)
    gone = known.addresses[0].replace(f"/tcp/{DHT_PORT}/", "/tcp/4899/").rpartition("/p2p/")[0]
    place.ticket = Ticket(known.run_id, (f"{gone}/p2p/{Identity.generate().peer_id}",)).encode()
    yield


@contextlib.contextmanager
def slow_line(place: Place) -> Iterator[None]:
    """Slow down the machine's upload."""
    shape = ("tc", "qdisc", "add", "dev", "wan", "root", "tbf", "rate", SLOW, "burst", "4kb", "latency", "500ms")
    run("ip", "netns", "exec", place.namespace, *shape)
    try:
        yield
    finally:
        run("ip", "netns", "exec", place.namespace, "tc", "qdisc", "del", "dev", "wan", "root")


@contextlib.contextmanager
def wrong_torch(place: Place) -> Iterator[None]:
    """Put another version of torch first on the module search path."""
    other = place.folder / "other"
    facts = other / "torch-2.12.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
    (other / "torch").mkdir()
    (other / "torch" / "__init__.py").write_text('__version__ = "2.12.0"\n')
    place.env["PYTHONPATH"] = os.pathsep.join((str(other), str(ROOT)))
    yield


@contextlib.contextmanager
def no_kernels(place: Place) -> Iterator[None]:
    """Use an installation that was made without a compiler."""
    bare = place.folder / "bare"
    shutil.copytree(ROOT / "peer", bare / "peer", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (bare / "sitecustomize.py").write_text(NO_CHECKOUT)
    place.env["PYTHONPATH"] = str(bare)
    yield


@contextlib.contextmanager
def foreign_home(place: Place) -> Iterator[None]:
    """Use a home of root as another user, who may read the interpreter."""
    place.home.mkdir(mode=0o700)
    scratch = place.folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    place.env["TMPDIR"] = str(scratch)
    read = "+dac_read_search"
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps", read)
    place.prefix = [*user, "--ambient-caps", read]
    yield


CASES = {
    "healthy": Case("run", "ok", "peers train", "", nothing),
    "port-taken": Case("port", NEVER, "another program holds this port", f"--port than {PORT}", taken_port),
    "clock-ahead": Case("clock", NEVER, "300 s ahead of", "timedatectl", wrong_clock(WRONG_S)),
    "clock-behind": Case("clock", NEVER, "300 s behind", "timedatectl", wrong_clock(-WRONG_S)),
    "disk-full": Case("disk", NEVER, "1.0 MB are free", "--keep-checkpoints 1", full_disk),
    "little-memory": Case("memory", NEVER, "of memory for its", "raise the container's memory limit", little_memory),
    "dead-ticket": Case("run", NEVER, "/tcp/4899/", "start the bootstrap node again", dead_ticket),
    "slow-line": Case("upload", NEVER, "end solo in every round", "longer rounds", slow_line),
    "closed-home": Case("reachable", TAKES_PART, "no: ", f"forward TCP port {PORT} to {HOME}", nothing, closed=True),
    "wrong-torch": Case("torch", NEVER, "torch 2.12.0 is installed", "install --force-reinstall 'torch", wrong_torch),
    "kernels-missing": Case("kernels", TAKES_PART, "not installed", "With a C compiler", no_kernels),
    "daemon-runs": Case("daemon", "ok", "takes part in run tiny", "", nothing, beside=True),
    "foreign-home": Case("home", NEVER, "belongs to root (mode 700)", f"sudo chown -R {NOBODY}", foreign_home),
}


@dataclass
class Found:
    """The outcome of a case. `wrong`: differences from the expected report, as sentences."""

    name: str
    seconds: float
    code: int
    report: dict[str, Any]
    wrong: list[str]

    def row(self, case: Case) -> list[str | float]:
        one: dict[str, Any] = next((one for one in self.report.get("findings", ()) if one["what"] == case.what), {})
        verdict = str(self.report.get("verdict", "none"))
        words = [verdict, self.code, case.what, one.get("severity", "none"), one.get("measured", "").split("\n")[0]]
        words = [word.replace(sys.executable, "python") if isinstance(word, str) else word for word in words]
        fix = one.get("fix", "").replace(sys.executable, "python")
        return [self.name, *words, fix, round(self.seconds, 1), "; ".join(self.wrong) or "right"]


def examine(name: str, case: Case, place: Place) -> Found:
    """Run `peer doctor` on a broken machine."""
    with case.broken(place):
        before = listing(place.home)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PEER_PORT_MAPPING": "no", **place.env}
        began = time.monotonic()
        done = subprocess.run(
            place.command(), timeout=DOCTOR_S, check=False, capture_output=True, text=True, cwd=place.folder, env=env
        )
        took = time.monotonic() - began
        after = listing(place.home)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return Found(name, took, done.returncode, {}, [f"no report: {done.stderr[-500:]}"])
    wrong = complaints(case, report, done.returncode)
    if "Traceback" in done.stderr:
        wrong.append("a traceback")
    if before != after and not case.beside:
        wrong.append(f"the home changed: {sorted(before ^ after)}")
    return Found(name, took, done.returncode, report, wrong)


def complaints(case: Case, report: dict[str, Any], code: int) -> list[str]:
    """Return the differences from the expected report."""
    ours = [one for one in report["findings"] if (one["what"], one["severity"]) == (case.what, case.severity)]
    others = [one["what"] for one in report["findings"] if one["severity"] == NEVER and one["what"] != case.what]
    wrong = [] if ours else [f"no finding {case.what} of severity {case.severity}"]
    wrong += [f"other errors: {', '.join(others)}"] * bool(others)
    wrong += ["its measurement is not named"] * all(case.measured not in one["measured"] for one in ours)
    wrong += ["its fix is not named"] * all(case.fix not in one["fix"] for one in ours)
    never = case.severity == NEVER
    wrong += [f"exit code {code}"] * ((code == NotReady.exit_code) != never)
    wrong += [f"verdict {report['verdict']}"] * ((report["verdict"] == "no") != never)
    return wrong


def listing(folder: Path) -> set[str]:
    """Return all paths in a folder with their sizes."""
    return {f"{path} {path.lstat().st_size}" for path in folder.rglob("*")} if folder.exists() else set()


async def measure(names: Sequence[str], folder: Path) -> list[Found]:
    sites = [open_site("bootstrap", 1), open_site("peer", 2), open_site("volunteer", 3), home_site(1)]
    with internet(sites) as hosts:
        places = {"bootstrap": hosts["bootstrap"]}, {"peer": hosts["peer"]}
        swarm = NatSwarm(folder, Run("noloco", ROUNDS, ROUND_S, MODEL), *places)
        swarm.let("peer", *dialled_at())
        try:
            await swarm.start()
            await swarm.trains()
            ticket = (swarm.nodes["bootstrap"].home / "ticket").read_text().strip()
            found = []
            for name in names:
                case, own = CASES[name], folder / f"case-{name}"
                own.mkdir()
                own.chmod(0o755)
                place = Place(own, hosts[f"home1/{HOME}" if case.closed else "volunteer"], ticket, home=own / "home")
                if case.closed:
                    place.options += ["--port", str(PORT)]
                if case.beside:
                    place.namespace, place.home = hosts["peer"], swarm.peers["peer"].home
                    place.options += ["--port", str(PORT)]
                found.append(await asyncio.to_thread(examine, name, case, place))
                print(f"{name}: {'; '.join(found[-1].wrong) or 'right'}", file=sys.stderr, flush=True)
            return found
        finally:
            for some in (swarm.peers, swarm.nodes):
                await asyncio.gather(*(daemon.stop(20.0) for daemon in some.values()))


def first_line_s(folder: Path) -> tuple[float, float]:
    """Return the seconds until the first line of output, and the processor seconds until then."""
    began = time.monotonic()
    words = ("doctor", "--home", str(folder / "none"))
    with popen_python("peer", *words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took, used = time.monotonic() - began, psutil.Process(process.pid).cpu_times()
        process.terminate()
        process.wait(30)
    return took, used.user + used.system


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[])
    given = parsed(parser, ABOUT)
    if unknown := set(given.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(unknown)}. There are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory(prefix="peer-doctor-faults-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        found = asyncio.run(measure(given.cases or list(CASES), folder))
        first = [first_line_s(folder) for _ in range(5)]
    heads = ["case", "verdict", "exit code", "finding", "severity", "measured", "fix", "seconds", "judged"]
    cases = Table("Each case", heads, [one.row(CASES[one.name]) for one in found])
    figures = [
        Figure(
            "cases with the right finding, fix and exit code", "", sum(not one.wrong for one in found), None, len(found)
        ),
        Figure("first line of output, the best of five", "s", min(wall for wall, _ in first)),
        Figure("processor time until the first line, the best of five", "s", min(used for _, used in first), 0.3),
        Figure("longest examination", "s", max(one.seconds for one in found)),
    ]
    sys.exit(not publish(given, ABOUT, figures, cases))


if __name__ == "__main__":
    main()
