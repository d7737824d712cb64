"""Does the wheel alone bring a machine into a run, on each Python and without a compiler?

Bound: each installation that was given a torch exchanges with a peer of another installation. Some minutes, and
gigabytes of downloads where torch comes with its GPU libraries.

    python -m benchmarks.install [PYTHON[:WAY[:TORCH]]...] [--uv] [--json FILE] [--results]

PYTHON is an interpreter, and TORCH a version. WAY is one of these:

wheel        the wheel, with all that it requires
no-compiler  the source distribution, with a compiler that is not there
present      the wheel, into PYTHON's own environment, which has the requirements
alone        the wheel without its requirements, for a Python that torch is not to be fetched for

Wheel and source distribution are built first. Programs run in an empty folder. A bootstrap node and a first peer run
from this environment, and each installation joins them: from the command to the first inner step, and to the first
exchange."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.result import ROOT, Benchmark, Figure, Table, options, publish
from peer.python_child import python_command, run_python

ABOUT = Benchmark(
    "install",
    "Does the wheel alone bring a machine into a run, on each Python and without a compiler?",
    "10 (every automatic choice has a reason): the peer tells which kernels it has",
)
SETTINGS = ("sync_every=15", "total_rounds=100000", "eval_every=1000")
PATIENCE_S = 600.0
LOOK_S = 0.2
HEADS = (
    "python",
    "from",
    "torch",
    "kernels",
    "fetched_mb",
    "on_disk_mb",
    "install_s",
    "help_s",
    "joined_s",
    "met_s",
    "doctor",
    "doctor_s",
)
_TICKET = re.compile(r"\bpeersw[a-z2-7]{40,}")
_FETCHED = re.compile(r"(?:Downloading|Using cached) \S+ \(([\d.]+) (kB|MB|GB)\)")
_TAKEN = re.compile(r"^Processing (/\S+\.whl)", re.MULTILINE)
_CODECS = re.compile(r"codecs: (\w+)")
_UNITS = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
T = TypeVar("T")
_LIGHT = ("click",)
"""All that `peer --help` needs."""


@dataclass(frozen=True, slots=True)
class Way:
    """One installation: an interpreter, and what is installed how."""

    python: str
    way: str = "wheel"
    torch: str = ""
    """The version, as `2.13.0+cpu`. Empty: the newest that the package takes."""

    @classmethod
    def parse(cls, text: str) -> Way:
        return cls(*text.split(":", 2))


def plain(**more: str) -> dict[str, str]:
    """The environment without what would let an installation find this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "PEER_PORT_MAPPING": "no", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "", **more}


def output(*command: str | Path, cwd: Path, **more: str) -> str:
    """Return what a program prints. Raises SystemExit with that text when the program fails."""
    done = subprocess.run(
        command, cwd=cwd, env=plain(**more), capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def install(way: Way, built: dict[str, Path], folder: Path, uv: bool) -> tuple[Path, float | None, float]:
    """Make an environment; return its folder of programs, the megabytes that pip fetched, and the seconds."""
    began, programs = time.monotonic(), folder / "env" / "bin"
    python = programs / "python"
    if way.way == "present":
        python = Path(way.python)
        tool: tuple[str | Path, ...] = (python, "-m", "pip", "install", "--no-deps", "--force-reinstall")
        (folder / "env").symlink_to(python.parent.parent)
    elif uv:
        output("uv", "venv", "--python", way.python, folder / "env", cwd=folder)
        tool = ("uv", "pip", "install", "--python", python)
    else:
        output(way.python, "-m", "venv", folder / "env", cwd=folder)
        tool = (python, "-m", "pip", "install", "--no-compile")
    ours = built["sdist" if way.way == "no-compiler" else "wheel"]
    hidden = {"CC": "/nonexistent/cc"} if way.way == "no-compiler" else {}
    if way.way == "alone":
        said = output(*tool, "--no-deps", ours, *_LIGHT, cwd=folder)
    else:
        said = output(*tool, "--no-cache-dir", ours, *_torch(way), cwd=folder, **hidden)
    seconds = time.monotonic() - began
    fetched = sum(float(number) * _UNITS[unit] for number, unit in _FETCHED.findall(said))
    taken = {name: Path(name).stat().st_size / 1e6 for name in _TAKEN.findall(said)}
    return programs, None if uv or way.way == "present" else fetched + sum(taken.values()), seconds


def _torch(way: Way) -> list[str]:
    return [f"torch=={way.torch}"] if way.torch else []


def measure(way: Way, built: dict[str, Path], ticket: str, folder: Path, uv: bool) -> dict[str, Any]:
    programs, fetched, seconds = install(way, built, folder, uv)
    used = sum(
        file.stat().st_size
        for file in (folder / "env").resolve().rglob("*")
        if file.is_file() and not file.is_symlink()
    )
    version = output(programs / "python", "-c", "import platform; print(platform.python_version())", cwd=folder).strip()
    row: dict[str, Any] = dict.fromkeys(HEADS)
    row |= {"python": version, "from": way.way, "fetched_mb": fetched, "on_disk_mb": used / 1e6, "install_s": seconds}
    output(programs / "peer", "--help", cwd=folder)  # compiles
    began = time.monotonic()
    assert "Commands:" in output(programs / "peer", "--help", cwd=folder)
    row["help_s"] = time.monotonic() - began
    kernels = "from peer.codec import _kernels as k; print(k.use('best'))"
    if way.way == "alone":
        row["kernels"] = output(programs / "python", "-c", kernels, cwd=folder).strip()
        return row
    assert "TicketError" in output(programs / "peer", "help", "exit-codes", "21", cwd=folder)
    row["torch"] = output(
        programs / "python", "-c", "from importlib import metadata; print(metadata.version('torch'))", cwd=folder
    ).strip()
    return row | doctor(programs, ticket, folder) | join(programs, ticket, folder)


def doctor(programs: Path, ticket: str, folder: Path) -> dict[str, Any]:
    """Let `peer doctor` look at the machine and the run. Its exit code tells what it found, too."""
    began = time.monotonic()
    command = (programs / "peer", "doctor", ticket, "--home", folder / "home", "--json")
    done = subprocess.run(command, cwd=folder, env=plain(), capture_output=True, text=True, timeout=600, check=False)
    report = json.loads(done.stdout)
    for finding in report["findings"]:
        if finding["severity"] != "ok":
            print(f"  {finding['what']}: {finding['measured']}", flush=True)
    return {"doctor": report["verdict"], "doctor_s": time.monotonic() - began}


def join(programs: Path, ticket: str, folder: Path) -> dict[str, Any]:
    """Take part until the first exchange, then leave."""
    home, began = folder / "home", time.monotonic()
    with running((programs / "peer", "join", ticket, "--home", home, "--yes", "--plain"), folder) as log:
        journal = wait_for(lambda: next(home.glob("runs/*/journal.jsonl"), None), log)
        joined = wait_for(lambda: event(journal, "joined") and time.monotonic() - began, log)
        swapped = {"outcome": "exchanged"}
        exchanged = wait_for(lambda: event(journal, "round_ended", **swapped) and time.monotonic() - began, log)
        output(programs / "peer", "leave", "--home", home, cwd=folder)
        found = _CODECS.search(log.read_text())
        return {"kernels": found[1] if found else None, "joined_s": joined, "met_s": exchanged}


def event(journal: Path, kind: str, **fields: str) -> bool:
    """Whether a journal has an event of this kind, with these fields."""
    wanted = {"kind": kind, **fields}
    lines = journal.read_text().splitlines()
    return any(wanted.items() <= json.loads(line).items() for line in lines if line.endswith("}"))


def wait_for(look: Callable[[], T | bool | None], log: Path) -> T:
    """Look until there is something. Raises SystemExit with the end of the log after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing within {PATIENCE_S:.0f} s; {log} ends with:\n{log.read_text()[-3000:]}")
        time.sleep(LOOK_S)
    assert not isinstance(found, bool)
    return found


@contextlib.contextmanager
def running(command: Sequence[str | Path], folder: Path, **more: str) -> Iterator[Path]:
    """Run a daemon; the value is the file of what it says. The end of its input ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "said.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--leave-on-eof"], cwd=folder, env=plain(**more), stdin=subprocess.PIPE, stdout=file, stderr=file
        )
    try:
        yield log
    finally:
        assert process.stdin is not None
        process.stdin.close()
        code = process.wait(120)
    assert code == 0, f"{command}: exit code {code}\n{log.read_text()[-3000:]}"


@contextlib.contextmanager
def swarm(folder: Path) -> Iterator[str]:
    """A bootstrap node and a first peer from this environment; the value is the ticket."""
    folder.mkdir()
    program, ours = python_command("peer"), {"PYTHONPATH": str(ROOT)}
    manifest, home = folder / "run.toml", folder / "operator"
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    output(*program, "manifest", "new", manifest, "--home", home, *settings, cwd=folder, **ours)
    with running((*program, "bootstrap", manifest, "--home", home), folder / "bootstrap", **ours) as log:
        ticket = wait_for(lambda: _TICKET.search(log.read_text()), log).group()
        first = ("join", ticket, "--home", folder / "first", "--yes", "--plain")
        with running((*program, *first), folder / "peer", **ours) as said:
            wait_for(lambda: next((folder / "first").glob("runs/*/trainer.log"), None), said)
            yield ticket


def build(folder: Path) -> dict[str, Path]:
    """Build source distribution and wheel; their files."""
    run_python("build", "--outdir", str(folder), str(ROOT), check=True, stdout=subprocess.DEVNULL)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("ways", nargs="*", metavar="PYTHON[:WAY]", type=Way.parse, default=[Way(sys.executable)])
    parser.add_argument("--uv", action="store_true", help="install with uv, which does not tell how much it fetches")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peer-install-") as name:
        root = Path(name)
        built = build(root / "dist")
        rows = []
        with swarm(root / "swarm") as ticket:
            for number, way in enumerate(given.ways):
                folder = root / str(number)
                folder.mkdir()
                rows.append(measure(way, built, ticket, folder, given.uv))
                print(rows[-1], flush=True)
                shutil.rmtree(folder)
        sizes = {kind: file.stat().st_size / 1e6 for kind, file in built.items()}
    joiners = [row for row in rows if row["from"] != "alone"]
    figures = [
        Figure("wheel", "MB", sizes["wheel"]),
        Figure("source distribution", "MB", sizes["sdist"]),
        Figure("installations with a torch", "", len(joiners)),
        Figure("those that exchanged", "", sum(bool(row["met_s"]) for row in joiners), at_least=len(joiners)),
        Figure("slowest `peer --help`", "s", max(row["help_s"] for row in rows)),
    ]
    publish(given, ABOUT, figures, Table("Installations", HEADS, [[row[head] for head in HEADS] for row in rows]))


if __name__ == "__main__":
    main()
