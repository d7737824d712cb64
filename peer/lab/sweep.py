"""`peer sweep`: a grid of methods, settings and seeds, run in several processes at a time.

Each cell of the grid is one `peer compare` with one seed. Its result is a file, so that a stopped sweep resumes where
it was, and a larger grid runs only its new cells."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peer import __version__
from peer.errors import SwarmFailed, UsageError
from peer.lab.bench.tables import table
from peer.lab.compare.worth import T95
from peer.ports.console import Say
from peer.python_child import start_python, without_options
from peer.whole_files import replace_file

MOST_CELLS = 10_000
MOST_BYTES = 1_000_000
"""Largest size of a grid's file."""
ENDING_S = 60.0
"""Seconds that running swarms get to end when the sweep is stopped."""
FIX = "See the example of a grid in `peer help compare-methods`."

Value = str | int | float | bool


class Grid(BaseModel):
    """The contents of a grid's file. Every combination of a method, one value for each setting, and a seed is a
    cell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: Annotated[list[str], Field(min_length=1)]
    """Presets, manifests or baselines, as `peer compare` takes them. Paths of manifests are relative to the grid's
    file."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1000)]
    peers: Annotated[int, Field(ge=1, le=64)] = 4
    steps: Annotated[int, Field(ge=1)] | None = None
    """Inner steps of each peer. None: those of the first manifest."""
    virtual: bool = False
    """Simulate in virtual time with a tiny model instead of starting processes."""
    data: list[str] = []
    """Values of `--data` of `peer compare`."""
    set: dict[str, Annotated[list[Value], Field(min_length=1)]] = {}
    """Setting's name in the manifest -> the values to try."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid: one swarm."""

    method: str
    settings: tuple[tuple[str, Value], ...]
    seed: int
    words: tuple[str, ...]
    """Command line arguments of `peer`."""

    @property
    def key(self) -> str:
        """Name of its result file. Depends on the arguments and on the version of this program."""
        return blake3(json.dumps([__version__, *self.words]).encode()).hexdigest()[:20]

    @property
    def group(self) -> tuple[str, tuple[tuple[str, Value], ...]]:
        """Key of its group. The cells of a group differ only in their seeds."""
        return self.method, self.settings

    def __str__(self) -> str:
        return ", ".join([self.method, *(f"{name}={value}" for name, value in self.settings), f"seed {self.seed}"])


def read_grid(file: Path) -> tuple[Cell, ...]:
    """Return the cells of a grid's file, ordered by seed. Raises UsageError."""
    try:
        with file.open("rb") as opened:
            grid = Grid.model_validate(tomllib.loads(opened.read(MOST_BYTES).decode()))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", FIX) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the grid"
        if first["type"] == "extra_forbidden":
            raise UsageError(f"{file}: a grid has no key {where!r}", f"Use {', '.join(Grid.model_fields)}.") from error
        raise UsageError(f"{file}: {where}: {first['msg']}", FIX) from error
    except ValueError as error:
        raise UsageError(f"{file} is no grid: {error}", FIX) from error
    combinations = [tuple(zip(grid.set, values, strict=True)) for values in itertools.product(*grid.set.values())]
    count = len(grid.methods) * len(combinations) * len(grid.seeds)
    if count > MOST_CELLS:
        raise UsageError(f"{file} has {count:,} cells, and {MOST_CELLS:,} are the most", "Give fewer values or seeds.")
    cells = itertools.product(grid.seeds, grid.methods, combinations)
    return tuple(_cell(grid, method, settings, seed, file.parent) for seed, method, settings in cells)


def _cell(grid: Grid, method: str, settings: tuple[tuple[str, Value], ...], seed: int, folder: Path) -> Cell:
    named = str((folder / method).absolute()) if method.endswith(".toml") else method
    words = ["compare", named, "--peers", str(grid.peers), "--seed", str(seed), "--json"]
    words += ["--virtual"] if grid.virtual else []
    words += [] if grid.steps is None else ["--steps", str(grid.steps)]
    words += [word for one in grid.data for word in ("--data", one)]
    words += [word for name, value in settings for word in ("--set", f"{name}={json.dumps(value)}")]
    return Cell(method, settings, seed, tuple(words))


async def play(cells: Sequence[Cell], folder: Path, jobs: int, say: Say) -> None:
    """Run the cells that have no result in `folder` yet, `jobs` at a time. If cancelled, the running swarms are ended.
    Raises SwarmFailed if cells failed, after all others ran."""
    left = [cell for cell in cells if result_of(cell, folder) is None]
    say(f"{len(cells)} cells, of which {len(cells) - len(left)} are played already, {jobs} at a time")
    free, failed = asyncio.Semaphore(jobs), list[str]()

    async def one(cell: Cell) -> None:
        async with free:
            why = await _play_one(cell, folder)
        say(f"{cell}: {why or 'played'}")
        if why:
            failed.append(f"{cell}: {why}")

    async with asyncio.TaskGroup() as group:
        for cell in left:
            group.create_task(one(cell))
    if failed:
        raise SwarmFailed(f"{len(failed)} of {len(cells)} cells failed, the first: {failed[0]}", "Play it by itself.")


async def _play_one(cell: Cell, folder: Path) -> str:
    """Run a cell and write its result file. Return why it failed; empty: it succeeded."""
    pipe = asyncio.subprocess.PIPE
    child = await start_python(
        "peer",
        *cell.words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        env=without_options(),
    )
    try:
        printed, said = await child.communicate()
    finally:
        if child.returncode is None:
            await _end(child)
    if child.returncode != 0:
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        why = next((line for line in lines if line.lower().startswith("error:")), lines[-1] if lines else "")
        return why or f"exit code {child.returncode}"
    kept = {"method": cell.method, "settings": dict(cell.settings), "seed": cell.seed, "report": json.loads(printed)}
    replace_file(folder / f"{cell.key}.json", json.dumps(kept).encode(), mode=0o666)
    return ""


async def _end(child: asyncio.subprocess.Process) -> None:
    """Interrupt a comparison as Ctrl+C does, so that it ends its swarm. Kill it after ENDING_S."""
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(2)
    try:
        async with asyncio.timeout(ENDING_S):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def result_of(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """Return the report of a cell. None: it has not run yet, or its file is damaged."""
    try:
        found = json.loads((folder / f"{cell.key}.json").read_bytes())
        report: dict[str, Any] = found["report"]
        float(report["methods"][0]["loss"])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None
    return report


@dataclass(frozen=True, slots=True)
class SweptGroup:
    """The results of one method with one set of values, over all seeds."""

    method: str
    settings: tuple[tuple[str, Value], ...]
    losses: tuple[float, ...]
    """Final loss in nats per token of each seed that ran."""
    seeds: int
    """Number of seeds in the grid."""
    bytes: float
    """Payload bytes sent by a peer, mean over the seeds."""
    seconds: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.losses)

    @property
    def half_width(self) -> float | None:
        """Half width of the 95 % confidence interval over the seeds, by Student's t. None: fewer than two seeds."""
        count = len(self.losses)
        if count < 2:
            return None
        t = T95[count - 2] if count - 2 < len(T95) else 1.96
        return t * statistics.stdev(self.losses) / math.sqrt(count)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "settings": dict(self.settings),
            "loss": self.mean,
            "half_width": self.half_width,
            "losses": list(self.losses),
            "seeds": self.seeds,
            "bytes": round(self.bytes),
            "seconds": round(self.seconds, 3),
        }


def swept(cells: Sequence[Cell], folder: Path) -> Iterator[SweptGroup]:
    """Return the groups that have at least one result, the lowest mean loss first."""
    by_group: dict[Any, list[Cell]] = {}
    for cell in cells:
        by_group.setdefault(cell.group, []).append(cell)
    found = list[SweptGroup]()
    for (method, settings), members in by_group.items():
        reports = [report for cell in members if (report := result_of(cell, folder)) is not None]
        if not reports:
            continue
        lasts = [report["methods"][0]["curve"][-1] for report in reports]
        found.append(
            SweptGroup(
                method,
                settings,
                tuple(float(report["methods"][0]["loss"]) for report in reports),
                len(members),
                statistics.fmean(float(last["bytes"]) for last in lasts),
                statistics.fmean(float(last["seconds"]) for last in lasts),
            )
        )
    yield from sorted(found, key=lambda group: group.mean)


def sweep_table(groups: Sequence[SweptGroup]) -> str:
    """Return the groups as a text table."""
    names = list(dict.fromkeys(name for group in groups for name, _ in group.settings))
    heads = ["method", *names, "loss", "+-", "seeds", "MB sent", "seconds"]
    rows = [
        [
            group.method,
            *(str(dict(group.settings).get(name, "")) for name in names),
            f"{group.mean:.4f}",
            "" if group.half_width is None else f"{group.half_width:.4f}",
            f"{len(group.losses)} of {group.seeds}",
            f"{group.bytes / 1e6:.3g}",
            f"{group.seconds:.0f}",
        ]
        for group in groups
    ]
    return table(heads, rows)
