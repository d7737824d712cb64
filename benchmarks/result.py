"""The result of a benchmark: figures and their bounds, with commit, machine and load, as JSON in `results/`.

Every benchmark takes `--json FILE`, `--results` and `--smallest`. The newest result overwrites the one that stands
there. `benchmarks.performance_page` makes docs/reference/performance.md of all of them. `--smallest` plays a benchmark
at its smallest size, so that a test can find out whether it still works (tests/lab/bench/test_smallest_plays.py)."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import nat_network
from peer.lab.bench.machine import machine, versions
from peer.lab.bench.tables import Cell, table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
NOT_HERE = 77
"""Exit code of a benchmark that cannot run on this machine; that of a skipped test in automake."""
LOAD_BEFORE = round(os.getloadavg()[0], 1)
"""Load average of the last minute at the start: the load by other programs."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The fixed facts about a benchmark. `promise`: the numbered promise or the bound that it guards."""

    name: str
    question: str
    promise: str
    smallest: str
    """Options of the smallest size. Empty: the benchmark has only one size."""
    needs: tuple[str, ...] = ()
    """What the machine must have: `namespaces`, `gpu`, `root`, `python:MODULE`, or the name of a program."""
    is_long: bool = False
    """Whether the smallest size takes too long for `make test`. `make bench-smallest` runs it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, and its bound if there is one."""

    name: str
    unit: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the number keeps its bound. None: there is no bound, or it was not measured."""
        if self.value is None or (self.at_most is None and self.at_least is None):
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def as_json(self) -> dict[str, Any]:
        bound = {"at_most": self.at_most, "at_least": self.at_least}
        kept = {name: limit for name, limit in bound.items() if limit is not None} or None
        value = float(f"{self.value:.4g}") if isinstance(self.value, float) else self.value
        return {"name": self.name, "unit": self.unit, "value": value, "bound": kept, "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of further numbers without bounds."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def as_json(self) -> dict[str, Any]:
        rows = [[float(f"{cell:.4g}") if isinstance(cell, float) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "heads": list(self.heads), "rows": rows}


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. `doc`: the module's docstring, shown by --help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument("--results", action="store_true", help="write the result to results/NAME.json")
    parser.add_argument("--smallest", action="store_true", help="play the smallest size; no bound is judged")
    return parser


def parsed(parser: argparse.ArgumentParser, about: Benchmark) -> argparse.Namespace:
    """Parse the command line. Ends the process with exit code 2 for invalid options, and with `NOT_HERE` if this
    machine lacks what the benchmark needs, before anything is measured."""
    words = sys.argv[1:]
    given = parser.parse_args([*shlex.split(about.smallest), *words] if "--smallest" in words else words)
    if given.smallest and given.results:
        parser.error("--smallest judges no bound, so its figures are no result: leave --results out")
    folder = given.json and given.json.absolute().parent
    if folder is not None and (given.json.is_dir() or not os.access(folder, os.W_OK)):
        parser.error(f"--json {given.json} cannot be written")
    if lacking := why_not(about.needs):
        print(f"{about.name} cannot run here: {lacking}", file=sys.stderr)
        sys.exit(NOT_HERE)
    return given


def why_not(needs: Sequence[str]) -> str:
    """Return which of `needs` (see `Benchmark`) this machine lacks, as the end of a sentence. Empty: none."""
    programs = [one for one in needs if one not in ("namespaces", "gpu", "root") and not one.startswith("python:")]
    if missing := [one for one in programs if shutil.which(one) is None]:
        return f"not installed: {' '.join(missing)}"
    for one in needs:
        if one.startswith("python:") and importlib.util.find_spec(one.removeprefix("python:")) is None:
            return f"the Python package {one.removeprefix('python:')} is not installed"
    if "root" in needs and os.geteuid() != 0:
        return "it takes root"
    if "gpu" in needs and not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU"
    return nat_network.why_not() if "namespaces" in needs else ""


def publish(
    given: argparse.Namespace, about: Benchmark, figures: Sequence[Figure], *tables: Table, variant: str = ""
) -> bool:
    """Print the figures, and write the result as the options say. `variant`: suffix of the file's name.

    Return False if a figure breaks its bound. At the smallest size no figure is judged."""
    words = {None: "", True: "holds", False: "BROKEN"}
    rows = [[one.name, one.value, one.unit, limits(one.as_json()["bound"]), words[one.holds]] for one in figures]
    print(f"\n{table(['', 'value', '', 'bound', ''], rows)}", flush=True)
    name = f"{about.name}-{variant}" if variant else about.name
    record = {
        "benchmark": name,
        "question": about.question,
        "promise": about.promise,
        **surroundings(),
        "command": command(about.name),
        "source": None,
        "figures": [one.as_json() for one in figures],
        "tables": [one.as_json() for one in tables],
    }
    for file in (given.json, RESULTS / f"{name}.json" if given.results else None):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return given.smallest or all(one.holds is not False for one in figures)


def limits(bound: dict[str, float] | None) -> str:
    """Return a bound as text. None: there is no bound."""
    return " and ".join(f"{kind.replace('_', ' ')} {limit:g}" for kind, limit in (bound or {}).items())


def command(name: str) -> str:
    """Return the command line without the options for the result's place. Of a folder elsewhere only its name is
    included, because the rest of the path is specific to this machine."""
    kept, rest = [], iter(sys.argv[1:])
    for word in rest:
        if word == "--json":
            next(rest, None)
        elif word != "--results" and not word.startswith("--json="):
            kept.append(_anywhere(word))
    return shlex.join(["python", "-m", f"benchmarks.{name}", *kept])


def _anywhere(word: str) -> str:
    """Return a command line word without machine-specific paths: `--old=/home/me/old` becomes `--old=old`."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return word
    return f"{option}{equals}{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}"


def surroundings() -> dict[str, Any]:
    """Return commit, date, machine and load of this process. Loads are means of a minute, before and after."""
    here, made_with = machine(), versions()
    return {
        "commit": product_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "cpu": here["processor"],
            "cores": here["cores_allowed"],
            "memory_gib": here["memory_gib"],
            "python": made_with["python"],
            "torch": made_with["torch"],
        },
        "load": LOAD_BEFORE,
        "load_after": round(os.getloadavg()[0], 1),
    }


def product_commit() -> str:
    """Return the last commit that changed `peer/`, with a `+` if files there differ from it. Empty outside a checkout.

    A commit that changes only benchmarks, results or pages measures the same program."""
    try:
        last = _git("log", "-1", "--format=%h", "--", "peer").strip()
        return last + "+" * bool(_git("status", "--porcelain", "--untracked-files=no", "--", "peer").strip())
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    whole = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(whole, check=True, capture_output=True, text=True, timeout=20).stdout
